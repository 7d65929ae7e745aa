// The views, in the order of the rail. A view is a folder here with View.svelte; it is loaded when it is first opened.

import type { Component } from 'svelte'

import { dictionary } from '../lib/words'
import type { Architecture } from '../lib/types'

const found = import.meta.glob<{ default: Component }>('./*/View.svelte')

export const name = dictionary(
  {
    map: 'Map', tokens: 'Tokens', position: 'Position', attention: 'Attention', block: 'Inside a layer', output: 'Output', decoding: 'Decoding',
    training: 'Training', compare: 'Compare', image: 'Image', numbers: 'By hand',
  },
  {
    map: '地图', tokens: '词元', position: '位置', attention: '注意力', block: '层的内部', output: '输出', decoding: '解码',
    training: '训练', compare: '对照', image: '图像', numbers: '手算',
  },
) // prettier-ignore

export type View = 'map' | 'tokens' | 'position' | 'attention' | 'block' | 'output' | 'decoding' | 'training' | 'compare' | 'image' | 'numbers'

const NEEDS: Partial<Record<View, (model: Architecture) => boolean>> = {
  tokens: (model) => model.input === 'text',
  position: (model) => model.parts.some((part) => part.kind === 'position') || model.input === 'text',
  output: (model) => model.kind !== 'encoder' || model.parts.some((part) => part.kind === 'softmax'),
  decoding: (model) => model.kind !== 'encoder',
  compare: (model) => model.kind === 'encoder-decoder',
  image: (model) => model.input === 'image',
}

const ALL: View[] = ['map', 'tokens', 'position', 'attention', 'block', 'output', 'decoding', 'training', 'compare', 'image', 'numbers']

/** The views that have something to show of this model. */
export const viewsOf = (model: Architecture | null): View[] => ALL.filter((view) => !model || (NEEDS[view]?.(model) ?? true))

export const loadView = (view: string): (() => Promise<{ default: Component }>) | undefined => found[`./${view}/View.svelte`]
