// A learnt table of positions; in a saved page, which holds no large matrices, those of its rows that the run used.

import { tensor, weight } from '../../lib/api'
import type { Tensor } from '../../lib/tensor'
import type { Run } from '../../lib/types'
import type { Scheme } from './encoding'

/** The table from the first position on. */
export async function learnt(scheme: Scheme & { kind: 'learned' }, model: string, run: Run | null, stack: string): Promise<Tensor> {
  try {
    const whole = await weight(model, scheme.matrix)
    return { ...whole, shape: [whole.shape[0] - scheme.first, scheme.d], data: whole.data.subarray(scheme.first * scheme.d) }
  } catch (error) {
    if (!run) throw error
    return tensor(run, stack + '.positions').catch(() => Promise.reject(error))
  }
}
