// What a part is called, what it computes, and the view in which its numbers stand.

import { go } from '../../lib/state.svelte'
import type { Part, TensorInfo } from '../../lib/types'
import { w } from './words'

type Word = Parameters<typeof w>[0]

const masked = (part: Part) => part.kind === 'self-attention' && !!part.causal

export const title = (part: Part): string => {
  const key = masked(part) ? 'masked' : part.kind === 'head' ? 'head-part' : part.kind
  return w(key as Word) || part.kind
}

export const saying = (part: Part): string => w((masked(part) ? 'say-masked' : 'say-' + part.kind) as Word) || w('say-other')

const FORMULAS: Record<string, string> = {
  'self-attention': 'softmax(\\frac{Q K^T}{\\sqrt{d_k}}) V',
  masked: 'softmax(\\frac{Q K^T}{\\sqrt{d_k}} + M) V',
  'cross-attention': 'softmax(\\frac{Q K^T}{\\sqrt{d_k}}) V',
  'sparse-attention': 'softmax(\\frac{Q K^T}{\\sqrt{d_k}} + M) V',
  retention: '(Q K^T ⊙ D) V,  D_{nm} = γ^{n−m}',
  'state-space': 'h_t = A_t h_{t−1} + B_t x_t,  y_t = C_t h_t',
  add: 'x + f(x)',
  norm: 'γ \\frac{x − μ}{\\sqrt{σ^2 + ε}} + β',
  softmax: 'p_i = \\frac{e^{z_i}}{Σ_j e^{z_j}}',
  head: 'z = x W_V',
  embedding: 'x_t = E_{token(t)}',
}

export function formula(part: Part, config: Record<string, any>): string | undefined {
  const block = config[part.stack ?? '']?.blocks?.[part.layer ?? 0]
  if (part.kind === 'feed-forward') {
    const name = block?.ffn?.activation ?? 'f'
    return block?.ffn?.type === 'mlp' || !block ? `${name}(x W_1 + b_1) W_2 + b_2` : `(${name}(x W_g) ⊙ x W_1) W_2`
  }
  if (part.kind === 'norm' && (block?.norm?.type ?? config[part.stack ?? '']?.final_norm?.type) === 'rms') return 'γ \\frac{x}{\\sqrt{mean(x^2) + ε}}'
  if (part.kind === 'position') return config[part.stack ?? '']?.position?.type === 'sinusoidal' ? 'sin(t / 10000^{2i/d}), cos(t / 10000^{2i/d})' : undefined
  return FORMULAS[masked(part) ? 'masked' : part.kind]
}

/** Leads to a part's numbers. */
export function visit(part: Part, head?: number) {
  const stack = part.stack ?? 'decoder'
  const here = { stack, ...(part.layer !== null && { layer: part.layer }), ...(head !== undefined && { head }) } as const
  switch (part.kind) {
    case 'tokens':
    case 'embedding':
      return go({ view: 'tokens', stack })
    case 'patches':
      return go({ view: 'image' })
    case 'position':
      return go({ view: 'position', stack })
    case 'feed-forward':
      return go({ ...here, view: 'block', options: { part: 'ffn' } })
    case 'norm':
      return go({ ...here, view: 'block', options: { part: 'norm' } })
    case 'add':
      return part.layer === null ? go({ view: 'position', stack }) : go({ ...here, view: 'block', options: { part: 'residual' } })
    case 'head':
    case 'softmax':
      return go({ view: 'output' })
    default:
      return go({ ...here, view: 'attention', kind: part.kind === 'cross-attention' ? 'cross' : part.causal ? 'masked' : 'self' })
  }
}

/** The tensor whose row at one position says most about a part: its hidden activations, or what it gives. */
export function shown(part: Part, tensors: TensorInfo[]): TensorInfo | undefined {
  const here = tensors.filter((each) => each.part === part.id)
  const last = (axes: string) => here.findLast((each) => each.axes.replaceAll(' ', '') === axes)
  if (part.kind === 'feed-forward') return here.find((each) => each.name.endsWith('.post') && each.axes.replaceAll(' ', '') === 'BTF') ?? last('BTF') ?? last('BTD')
  return last('BTD')
}
