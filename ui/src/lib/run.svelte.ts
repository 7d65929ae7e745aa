// The model and the run that the page is about. Views read `session`; they never start a run, but change `state`.

import { untrack } from 'svelte'

import * as api from './api'
import { picture } from './picture'
import { point, state } from './state.svelte'
import type { Architecture, ModelCard, Part, Run, RunRequest } from './types'

export const session = $state({
  models: [] as ModelCard[],
  card: null as ModelCard | null,
  architecture: null as Architecture | null,
  run: null as Run | null,
  /** A newer run is on its way; what is shown belongs to the older text. */
  busy: false,
  /** One line, or nothing. */
  error: '',
  /** The error may pass: it is worth trying again. */
  lost: false,
  /** An image, as base64, for a model of images. */
  image: '',
  attempt: 0,
})

export const retry = () => session.attempt++

let standard: string | undefined

/** What the state asks of the server. */
export function request(card: ModelCard): RunRequest {
  const [from, to] = direction(card) ?? []
  return {
    model: card.name,
    ...(card.input === 'image' ? { image: api.isSaved() ? undefined : session.image || (standard ??= picture()) } : { text: state.text || card.example }),
    from,
    to,
    target: state.target || undefined,
    prefix: state.prefix.length ? [...state.prefix] : undefined,
    beam_size: state.beam,
    length_penalty: state.penalty < 0 ? undefined : state.penalty,
    pad: state.pad || undefined,
  }
}

/** The chosen direction; else the one whose source the text is written in; else the first. */
export function direction(card: ModelCard): [string, string] | undefined {
  const chosen = card.directions.find(([from, to]) => from === state.from && to === state.to)
  if (chosen || !card.directions.length) return chosen
  const chinese = /\p{Script=Han}/u.test(state.text || card.example)
  return card.directions.find(([from]) => (from === 'zh') === chinese) ?? card.directions[0]
}

/** Fetches what the state names; call once, while a component is being set up. */
export function followState() {
  $effect(() => {
    session.attempt
    api.models().then((models) => ((session.models = models), (session.error = '')), fail)
  })

  $effect(() => {
    const { models } = session
    if (!models.length) return
    const named = models.find((card) => card.name === state.model)
    if (state.model && !named) session.error = `no model ${state.model} here; there are ${models.map((card) => card.name).join(', ')}`
    session.card = named ?? models.find((card) => !card.problem) ?? models[0]
  })

  $effect(() => {
    const name = session.card?.name
    session.attempt
    if (!name) return
    let stale = false
    // Another model's numbers would not fit this one's parts.
    untrack(() => {
      if (session.architecture?.name !== name) session.architecture = null
      if (session.run?.model !== name) session.run = null
    })
    if (session.card?.problem) return fail(new Error(session.card.problem))
    api.architecture(name).then((found) => stale || (session.architecture = found), (error) => stale || fail(error))
    return () => (stale = true)
  })

  let asked = ''
  $effect(() => {
    const { card, attempt } = session
    if (!card || card.problem) return
    const body = request(card)
    const name = api.canonical(body) + attempt
    if (name === asked) return
    asked = name
    session.busy = true
    api.run(body).then(arrive, (error) => error.name === 'AbortError' || fail(error))
  })
}

function arrive(run: Run) {
  Object.assign(session, { run, busy: false, error: state.model && state.model !== run.model ? session.error : '' })
  point(null)
  state.source = clamp(state.source, run.source.length)
  state.step = clamp(state.step, run.target.length)
  if (!run.target.length) state.stack = 'encoder'
  else if (!session.architecture?.parts.some((part) => part.stack === 'encoder') && session.architecture) state.stack = 'decoder'
}

let again = ''

/** What belongs to a run cannot be had: a run that the server let go is made once more, a server that is silent is reported. */
export function mislaid(error: Error) {
  if ((error as api.Refusal).status === 0) return fail(error)
  const id = session.run?.id ?? ''
  if (!id || id === again) return
  again = id
  retry()
}

function fail(error: Error) {
  Object.assign(session, { busy: false, error: error.message, lost: [0, 503].includes((error as api.Refusal).status) })
}

export const clamp = (index: number, length: number) => Math.max(0, Math.min(length - 1, index))

/** Parts of a stack that look at other positions, in order. */
export const mixers = (architecture: Architecture | null): Part[] =>
  architecture?.parts.filter((part) => part.layer !== null && !['feed-forward', 'add', 'norm'].includes(part.kind)) ?? []

/** The part that the selection names (stack, layer, kind), with the stack's own as a fallback. */
export function selectedMixer(): Part | undefined {
  const here = mixers(session.architecture).filter((part) => part.stack === state.stack)
  const layer = here.filter((part) => part.layer === clamp(state.layer, layersOf(state.stack)))
  return layer.find((part) => (part.kind === 'cross-attention') === (state.kind === 'cross')) ?? layer[0] ?? here[0]
}

export function layersOf(stack: 'encoder' | 'decoder'): number {
  return Math.max(0, ...(session.architecture?.parts ?? []).filter((part) => part.stack === stack && part.layer !== null).map((part) => part.layer! + 1))
}
