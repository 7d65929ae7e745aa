// The chosen cell: what every step of its arithmetic needs to know.

import type { Part, Run, TensorInfo, Token } from '../../lib/types'
import type { Sight } from './which'

export interface Cell {
  run: Run
  part: Part
  tensors: Map<string, TensorInfo>
  head: number
  heads: number
  row: number
  col: number
  queries: Token[]
  keys: Token[]
  sight: Sight
  /** The part's configuration. */
  config: Record<string, any>
  /** Scores have a bias of the position added (ALiBi, T5). */
  biased: boolean
  /** That bias as the stack's configuration has it; null where what is added is another. */
  bias: Record<string, any> | null
  /** Names of the keys and values that this row uses: a global token has its own. */
  keyTap: string
  valueTap: string
}
