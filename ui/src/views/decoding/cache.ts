// What the layers of a decoder keep between steps.

import type { Architecture } from '../../lib/types'

export interface Row {
  layer: number
  /** tokens: a column each step; source: made once; state: of constant size. */
  kind: 'tokens' | 'source' | 'state'
  name: string
}

const STATES = ['retention', 'state-space', 'rwkv', 'lstm']

/** One row a mixer, in order: what grows, what is made once, and what is a state. */
export function rows(architecture: Architecture): Row[] {
  return architecture.parts
    .filter((part) => part.stack === 'decoder' && part.layer !== null)
    .flatMap((part): Row[] => {
      if (part.kind === 'cross-attention') return [{ layer: part.layer!, kind: 'source', name: part.id }]
      if (part.kind === 'self-attention' || part.kind === 'sparse-attention') return [{ layer: part.layer!, kind: 'tokens', name: part.id }]
      return STATES.includes(part.kind) ? [{ layer: part.layer!, kind: 'state', name: part.id }] : []
    })
}
