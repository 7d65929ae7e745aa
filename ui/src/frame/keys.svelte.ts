// The keyboard, wherever no part of the page took the key first.

import { clamp, layersOf, selectedMixer, session } from '../lib/run.svelte'
import { state } from '../lib/state.svelte'
import { viewsOf } from '../views'

export const panels = $state({ help: false, playing: false, finding: 0 })

/** Steps through the positions: of the target where there is one, else of the source. */
export function step(by: number) {
  const run = session.run
  if (!run) return
  if (run.target.length) state.step = clamp(state.step + by, run.target.length)
  else state.source = clamp(state.source + by, run.source.length)
}

const layers = () => layersOf(state.stack)
const heads = () => selectedMixer()?.heads ?? 1

const KEYS: Record<string, () => void> = {
  ArrowRight: () => step(1),
  ArrowLeft: () => step(-1),
  ArrowDown: () => session.run && (state.source = clamp(state.source + 1, session.run.source.length)),
  ArrowUp: () => session.run && (state.source = clamp(state.source - 1, session.run.source.length)),
  ']': () => (state.layer = clamp(state.layer + 1, layers())),
  '[': () => (state.layer = clamp(state.layer - 1, layers())),
  '.': () => (state.head = clamp(state.head + 1, heads())),
  ',': () => (state.head = clamp(state.head - 1, heads())),
  ' ': () => (panels.playing = !panels.playing),
  '?': () => (panels.help = !panels.help),
  '/': () => panels.finding++,
}

export function press(event: KeyboardEvent) {
  const target = event.target as HTMLElement
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest('input, textarea, select, [contenteditable]')) return
  if (event.key === ' ' && target.closest('button, [role="button"], a')) return
  const digit = viewsOf(session.architecture)[Number(event.key) - 1]
  if (digit && /^[1-9]$/.test(event.key)) state.view = digit
  else if (KEYS[event.key]) KEYS[event.key]()
  else return
  event.preventDefault()
}
