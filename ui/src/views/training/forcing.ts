// Teacher forcing as numbers: losses, what the model would have said, and where its own words leave the reference.

import type { Lens, Run, Token, TrainingEvent } from '../../lib/types'

/** What the model finds likeliest at a position, and how probable that is. */
export interface Own {
  token: Token
  /** Probability; NaN where it was not told. */
  p: number
}

/** −log p of each label. */
export const losses = (run: Run): number[] => run.label_logprobs.map((value) => -value)

export const mean = (values: readonly number[]): number => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : NaN)

/** e to the mean loss: among how many equally likely words the model wavers. */
export const perplexity = (values: readonly number[]): number => Math.exp(mean(values))

/** (1 − ε) · loss + ε · mean over the vocabulary of −log p (Szegedy et al. 2016, section 7). */
export const smoothed = (loss: number, uniform: number, epsilon: number): number => (1 - epsilon) * loss + epsilon * uniform

/** The model's own choice at each position: what the last layer says. */
export function ownChoices(lens: Lens | null): Own[] {
  const last = lens?.layers.at(-1)
  return (last?.positions ?? []).flatMap((candidates) => (candidates[0] ? [{ token: candidates[0].token, p: Math.exp(candidates[0].logprob) }] : []))
}

/** The first place where two lines of tokens differ; their length where they do not. */
export function departure(a: readonly Token[], b: readonly Token[]): number {
  const at = a.findIndex((token, i) => b[i]?.id !== token.id)
  return at >= 0 ? at : Math.max(a.length, b.length)
}

export interface Moment {
  /** Place in the list of events. */
  index: number
  step: number
  tokens: Token[]
  /** Tokens that stand where the label has them, too. */
  right: number
}

/** The steps at which what the model says by itself became another sentence; no more than `most`, the first and the last among them. */
export function moments(events: readonly TrainingEvent[], most = 12): Moment[] {
  const changed: Moment[] = []
  let before = ''
  events.forEach((event, index) => {
    const said = event.free.map((token) => token.id).join(' ')
    if (index && said === before) return
    before = said
    changed.push({ index, step: event.step, tokens: event.free, right: event.labels.filter((token, i) => event.free[i]?.id === token.id).length })
  })
  if (changed.length <= most) return changed
  return Array.from({ length: most }, (_, i) => changed[Math.round((i * (changed.length - 1)) / (most - 1))])
}

/** Loss of each position (row) at each recorded step (column), row-major. */
export function lossTable(events: readonly TrainingEvent[]): Float32Array {
  const rows = events[0]?.labels.length ?? 0
  return Float32Array.from({ length: rows * events.length }, (_, i) => events[i % events.length].loss_per_position[Math.floor(i / events.length)])
}

/** The place of the recorded step nearest to this one; the last where `step` < 0. */
export function placeOf(events: readonly TrainingEvent[], step: number): number {
  if (step < 0 || !events.length) return events.length - 1
  return events.reduce((best, event, i) => (Math.abs(event.step - step) < Math.abs(events[best].step - step) ? i : best), 0)
}
