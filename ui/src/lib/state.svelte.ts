// The one state of the page, held in the address. Views read `state`, and write to it; nothing else is shared but `hover`.

import { DEFAULTS, MILESTONES, fromHash, toHash, type Language, type Selection } from './hash'

const start: Selection = typeof location === 'undefined' ? { ...DEFAULTS } : fromHash(location.hash)

export const state = $state<Selection>(start)

export type Side = 'source' | 'target'

/** The tokens under the pointer, anywhere on the page; −1 is none. */
export const hover = $state<Record<Side, number>>({ source: -1, target: -1 })

export const point = (at: Partial<Record<Side, number>> | null) => Object.assign(hover, { source: -1, target: -1, ...at })

/** Several fields at once: `go({ view: 'attention', layer: 2 })`. */
export const go = (to: Partial<Selection>) => Object.assign(state, to)

/** The position in focus in the stack at hand: a row of its tensors. */
export const row = () => (state.stack === 'encoder' ? state.source : state.step)
export const setRow = (index: number) => (state.stack === 'encoder' ? (state.source = index) : (state.step = index))

/** A view's own number, kept in the link: `option('temperature', 1)`. */
export function option(name: string, standard: number): number {
  const value = Number(state.options[name] ?? standard)
  return Number.isFinite(value) ? value : standard
}

export function setOption(name: string, value: number | string | null, standard?: number | string) {
  if (value === null || value === standard) delete state.options[name]
  else state.options[name] = String(value)
}

export function language(): Language {
  if (state.lang) return state.lang
  return typeof navigator !== 'undefined' && /^zh\b/i.test(navigator.language) ? 'zh' : 'en'
}

/** Keeps address and state equal; call once, while a component is being set up. */
export function followAddress() {
  let milestone = mark()
  $effect(() => {
    const hash = toHash(state)
    if (hash === toHash(fromHash(location.hash)) && location.hash) return
    const now = mark()
    if (now === milestone || !location.hash) history.replaceState(null, '', hash)
    else history.pushState(null, '', hash)
    milestone = now
  })
  $effect(() => {
    const back = () => {
      const read = fromHash(location.hash)
      // Language and theme are the reader's: an address that names none changes none.
      if (read.lang === DEFAULTS.lang) read.lang = state.lang
      if (read.theme === DEFAULTS.theme) read.theme = state.theme
      Object.assign(state, read)
      milestone = mark()
    }
    addEventListener('popstate', back)
    return () => removeEventListener('popstate', back)
  })
}

const mark = () => JSON.stringify(MILESTONES.map((key) => state[key]))
