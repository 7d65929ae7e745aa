// The state as a link: `#attention?layer=2&head=3&text=…`. Pure, so that the round trip can be tested.

export type Stack = 'encoder' | 'decoder'
export type Kind = 'self' | 'masked' | 'cross'
export type Theme = 'auto' | 'light' | 'dark'
export type Language = 'en' | 'zh'

/** All that a link restores. Positions count from 0; −1 is none. */
export interface Selection {
  view: string
  model: string
  /** Empty: the model's own example. */
  text: string
  from: string
  to: string
  /** A target to be read under teacher forcing; empty: the model's own. */
  target: string
  /** Ids that the target must begin with. */
  prefix: number[]
  beam: number
  /** α of the length penalty; −1: as the server has it. */
  penalty: number
  pad: number
  stack: Stack
  kind: Kind
  layer: number
  head: number
  /** Position among the source's tokens. */
  source: number
  /** Position among the target's tokens: the step of decoding. */
  step: number
  /** The key that the row in focus looks at. */
  col: number
  /** The second sentence or model of a comparison. */
  compare: string
  theme: Theme
  /** Empty: as the browser prefers. */
  lang: Language | ''
  /** What only one view knows, such as a temperature. */
  options: Record<string, string>
}

export const DEFAULTS: Readonly<Selection> = Object.freeze({
  view: 'map',
  model: '',
  text: '',
  from: '',
  to: '',
  target: '',
  prefix: [],
  beam: 4,
  penalty: -1,
  pad: 0,
  stack: 'encoder',
  kind: 'self',
  layer: 0,
  head: 0,
  source: 0,
  step: 0,
  col: -1,
  compare: '',
  theme: 'auto',
  lang: '',
  options: {},
})

const CHOICES: Record<string, readonly string[]> = {
  stack: ['encoder', 'decoder'],
  kind: ['self', 'masked', 'cross'],
  theme: ['auto', 'light', 'dark'],
  lang: ['en', 'zh', ''],
}

/** Only what differs from the defaults is written. An option is written as `~name`. */
export function toHash(state: Selection): string {
  const query = new URLSearchParams()
  for (const [key, standard] of Object.entries(DEFAULTS)) {
    const value = state[key as keyof Selection]
    if (key === 'view') continue
    if (key === 'options') for (const [name, text] of Object.entries(state.options)) query.set('~' + name, text)
    else if (String(value) !== String(standard)) query.set(key, String(value))
  }
  const text = query.toString()
  return '#' + state.view + (text && '?' + text)
}

/** A link that was cut or mistyped still opens: what cannot be read takes its default. */
export function fromHash(hash: string): Selection {
  const [view, query = ''] = hash.replace(/^#/, '').split(/\?(.*)/s)
  const state: Selection = { ...DEFAULTS, prefix: [], options: {}, view: /^[\w-]+$/.test(view) ? view : DEFAULTS.view }
  for (const [key, text] of new URLSearchParams(query)) {
    if (key.startsWith('~')) state.options[key.slice(1)] = text
    else if (key === 'prefix') state.prefix = text.split(',').filter(Boolean).map(Number).filter(Number.isInteger)
    else if (key === 'view' || key === 'options' || !Object.hasOwn(DEFAULTS, key)) continue
    else if (typeof DEFAULTS[key as keyof Selection] === 'number') {
      const number = Number(text)
      if (text !== '' && (Number.isInteger(number) || (key === 'penalty' && number >= 0 && Number.isFinite(number)))) Object.assign(state, { [key]: number })
    } else if (!CHOICES[key] || CHOICES[key].includes(text)) Object.assign(state, { [key]: text })
  }
  return state
}

/** Changes of these make a new step in the browser's history; of all others they replace the address. */
export const MILESTONES = ['view', 'model', 'text', 'from', 'to', 'target', 'prefix', 'beam', 'penalty', 'compare'] as const
