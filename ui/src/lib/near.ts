// Is a number that the page computed the one that the model recorded?

/** Equal as far as float32 lets a sum of that size be: `size` is what was added, without signs. */
export const near = (mine: number, theirs: number, size = Math.abs(theirs)): boolean =>
  mine === theirs || (Number.isNaN(mine) && Number.isNaN(theirs)) || Math.abs(mine - theirs) <= 1e-6 + 2e-5 * Math.max(size, Math.abs(theirs))

/** The largest distance between two of them, and whether all are equal so far. */
export function compare(mine: ArrayLike<number>, theirs: ArrayLike<number>): { most: number; same: boolean } {
  let most = mine.length === theirs.length ? 0 : Infinity
  let size = 0
  for (let i = 0; i < theirs.length; i++) {
    if (mine[i] === theirs[i]) continue
    most = Math.max(most, Math.abs(mine[i] - theirs[i]))
    size = Math.max(size, Math.abs(theirs[i]))
  }
  return { most, same: most <= 1e-6 + 4e-5 * size }
}
