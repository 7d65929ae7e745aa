// What the server tells the page: the contract between src/glassformer/explore and ui. docs/explore.md says it in words.

/** Axes are letters with blanks between, as in "B H T S": B batch, T query position, S key position, H head, G key head, K head feature, D feature, F, V … */
export type Axes = string

/** GET /api/models: what can be looked into; the first one opens by default. */
export interface ModelCard {
  name: string
  kind: 'encoder-decoder' | 'encoder' | 'decoder'
  input: 'text' | 'image'
  /** Language pairs of a translator, such as ["zh", "en"]; empty where the model names none. */
  directions: [string, string][]
  /** A sentence that shows the model well, in its source language. */
  example: string
  teaching: boolean
  /** Why it cannot be opened, where it cannot. */
  problem?: string
}

/** GET /api/models/NAME: the model as it stands, before any text. */
export interface Architecture {
  name: string
  kind: ModelCard['kind']
  input: ModelCard['input']
  /** ModelConfig as plain data, every block spelled out in `encoder.blocks` and `decoder.blocks`. */
  config: Record<string, any>
  parameters: number
  vocab_size: number
  tree: TreeNode
  /** What stands where, in the order in which data passes it. */
  parts: Part[]
  edges: Edge[]
}

export interface TreeNode {
  name: string
  kind: string
  shape: string
  parameters: number
  repeat: number
  children?: TreeNode[]
}

export type PartKind =
  | 'tokens' | 'embedding' | 'patches' | 'position' | 'self-attention' | 'cross-attention' | 'sparse-attention' | 'retention'
  | 'state-space' | 'rwkv' | 'lstm' | 'feed-forward' | 'add' | 'norm' | 'head' | 'softmax'

/** One box of the map. */
export interface Part {
  /**
   * Module path, such as "decoder.layers.0.cross"; unique. What is no module of its own has a name like one: source, target (tokens),
   * encoder.input (the sum of embedding and position), decoder.embed (the embedding that both stacks share), softmax. A residual is two
   * parts: decoder.layers.0.cross_residual (add) and decoder.layers.0.cross_residual.norm (norm), in the order of the block.
   */
  id: string
  kind: PartKind
  stack: 'encoder' | 'decoder' | null
  layer: number | null
  /** Tensors that a run records here, by name. */
  taps: string[]
  /** Learnt tensors here: name → shape. */
  weights: Record<string, number[]>
  parameters: number
  causal?: boolean
  heads?: number
}

/** Data that flows: `shape` as symbols and numbers, such as "S × 256". */
export interface Edge {
  from: string
  to: string
  shape: string
  kind: 'data' | 'residual' | 'memory'
}

export interface Token {
  id: number
  /** As the vocabulary writes it, such as "▁love" or "##able". */
  piece: string
  /** What a reader sees of it. */
  text: string
  special: boolean
  /** Characters [start, end) of the text that it came from; null for special tokens. */
  span: [number, number] | null
}

export interface TensorInfo {
  name: string
  axes: Axes
  shape: number[]
  /** Names of the tensors (or weights) that it is computed from. */
  parents: string[]
  part: string
}

/** POST /api/runs: one text through one model, everything recorded. */
export interface RunRequest {
  model: string
  text?: string
  /** PNG or JPEG, base64, for a model of images. */
  image?: string
  from?: string
  to?: string
  /** A target to be read under teacher forcing instead of the model's own. */
  target?: string
  /** Ids that the target must begin with: another token forced, decoding goes on behind it. */
  prefix?: number[]
  beam_size?: number
  max_new_tokens?: number
  length_penalty?: number
  /** Padding added to the source, so that padding masks can be seen. */
  pad?: number
}

export interface Run {
  id: string
  request: RunRequest
  model: string
  /** What an encoder reads; of an image, one token a patch; of a decoder-only model, its prompt. */
  source: Token[]
  /** True where a source token is real, false where it is padding. */
  source_mask: boolean[]
  /** What the decoder reads: "<s> I like" …, or the prompt and what was written behind it; empty for an encoder. Axis T of its tensors. */
  target: Token[]
  /** What it is to say at each of those positions: "I like … </s>"; the last may be missing in a generated text. */
  labels: Token[]
  /** Natural log-probability of each label. */
  label_logprobs: number[]
  tensors: TensorInfo[]
  decoding: Decoding | null
  /** Pairs (place in `source`, place in `labels`) where there is cross-attention. */
  alignment: [number, number][]
  output: {
    text: string
    /** Σ log p / ((5 + n) / 6)^α. */
    score: number | null
    labels?: { label: string; probability: number }[]
    /** A masked model's best pieces for each mask. */
    masks?: { position: number; candidates: Candidate[] }[]
    truncated: boolean
  }
  /** A picture as the model sees it: [height, width] of the grid of patches, and the pixels as a PNG, base64. */
  image?: { grid: [number, number]; png: string }
  seconds: { forward: number; total: number }
}

export interface Candidate {
  token: Token
  logprob: number
}

/** How the target came about. */
export interface Decoding {
  beam_size: number
  length_penalty: number
  nodes: BeamNode[]
  /** Of each step, what was offered and what it cost. */
  steps: DecodeStep[]
  hypotheses: { text: string; score: number; nodes: number[]; finished: boolean }[]
}

export interface BeamNode {
  id: number
  /** Node of the token before; -1 behind <s> (or behind a prompt). */
  parent: number
  /** The step that made it, from 0: a node of step t says what follows t tokens that were written. */
  step: number
  token: Token
  logprob: number
  /** Sum of log-probabilities so far. */
  sum: number
  /** Length-normalised. */
  score: number
  /** best: on the path of the chosen hypothesis. dropped: among a step's `beam_size` best losers. */
  fate: 'kept' | 'dropped' | 'finished' | 'best'
  forced: boolean
}

export interface DecodeStep {
  /** For each hypothesis that was extended: its last node, and the model's likeliest next tokens. */
  rows: { node: number; candidates: Candidate[] }[]
  /** Tokens that one hypothesis holds in the cache, and its bytes (the source's keys and values, too), after this step. */
  cache_tokens: number
  cache_bytes: number
  /** Arithmetic of this step for one hypothesis, with the cache and without it. */
  flops: number
  flops_without_cache: number
}

/** GET /api/runs/ID/lens?stack=decoder: what each layer would already say at each position ("logit lens"). */
export interface Lens {
  stack: string
  layers: { name: string; positions: Candidate[][] }[]
}

/** GET /api/models/NAME/vocabulary: what each id of the output means; place = id. */
export interface Vocabulary {
  pieces: string[]
  texts: string[]
  /** Ids that are no text. */
  special: number[]
}

/** GET /api/segment?model=…&side=source&text=…: how text becomes pieces. */
export interface Segmentation {
  kind: 'bpe' | 'wordpiece' | 'unigram' | 'words'
  normalized: string
  /** Step by step: what stands after each merge (or longest match); the last is the result. */
  words: { word: string; steps: { pieces: string[]; merged?: [string, string]; rank?: number; note?: string }[] }[]
  tokens: Token[]
}

/** GET /api/training (server-sent events) or, in a saved page, the whole list: a small translator that learns while one looks. */
export interface TrainingEvent {
  step: number
  steps: number
  loss: number
  dev_loss: number
  /** One pair under teacher forcing. */
  source: Token[]
  decoder_input: Token[]
  labels: Token[]
  loss_per_position: number[]
  /** The model's best token at each position, and the probability that it gives the label. */
  predictions: Token[]
  label_probabilities: number[]
  /** What it says by itself, token by token. */
  free: Token[]
  /** Cross-attention of the last layer, averaged over heads, target × source. */
  cross: number[][]
}

/** GET /api/worked: the small worked numbers, recomputed by this package's own layers. */
export interface Worked {
  name: string
  inputs: Record<string, any>
  expected: any
  computed: any
  tolerance: number
}

/** An error, as every route gives it: one line. */
export interface Problem {
  error: string
}
