// Another token forced: which of a target's tokens were written here, and the prefix that goes on behind them.

import type { Run, Token } from './types'

/** The place of the first label that the model wrote itself, behind a prompt. */
export const firstWritten = (run: Run): number => run.labels.length - written(run).length

/** Labels that the model wrote: of a decoder-only model, those behind the prompt. */
export function written(run: Run): Token[] {
  // A decoder-only model reads its source again as the beginning of its target.
  const prompt = run.target.length >= run.source.length && run.source.length > 0 && run.source.every((token, i) => run.target[i].id === token.id)
  return run.labels.slice(prompt ? run.source.length - 1 : 0)
}

/** Leading tokens that the model itself prescribes, such as a language; a prefix does not repeat them. */
function prescribed(run: Run): number {
  const forced = run.decoding?.nodes.filter((node) => node.forced).length ?? 0
  return Math.max(0, forced - (run.request.prefix?.length ?? 0))
}

/** The prefix that keeps what was written before the place `step` of the target, then says `id`; null where that is in the prompt. */
export function prefixAt(run: Run, step: number, id: number): number[] | null {
  const at = step - firstWritten(run)
  const own = prescribed(run)
  if (at < own || at > run.labels.length) return null
  return [...written(run).slice(own, at).map((token) => token.id), id]
}

/** Nodes of the beam's tree from the first one to this one. */
export function path(run: Run, node: number): number[] {
  const out: number[] = []
  const nodes = run.decoding?.nodes ?? []
  for (let at = node; at >= 0; at = nodes[at].parent) out.unshift(at)
  return out
}

/** The prefix that holds the tokens up to a node, and then perhaps one more. */
export function prefixTo(run: Run, node: number, id?: number): number[] {
  const ids = path(run, node).map((each) => run.decoding!.nodes[each].token.id)
  return [...ids.slice(prescribed(run)), ...(id === undefined ? [] : [id])]
}
