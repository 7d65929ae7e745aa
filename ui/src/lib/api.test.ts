import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'

import type { Run } from './types'

const run = (id: string) => ({ id, tensors: [{ name: 'x.pattern', axes: 'B H T S', shape: [1, 2, 3, 4], parents: [], part: 'x' }] }) as unknown as Run
const numbers = Float32Array.from({ length: 24 }, (_, i) => i / 3)
const base64 = (data: Float32Array) => btoa(String.fromCharCode(...new Uint8Array(data.buffer, data.byteOffset, data.byteLength)))

/** A server for the tests: answers by path, and remembers what it was asked. */
function serve(answers: Record<string, () => Response | Promise<Response>>) {
  const asked: string[] = []
  vi.stubGlobal('fetch', (url: URL, { signal, method }: RequestInit) => {
    asked.push(`${method} ${url.pathname}${url.search}`)
    const answer = Promise.resolve().then(() => answers[url.pathname + url.search]())
    const gone = new Promise<Response>((_, reject) => signal?.addEventListener('abort', () => reject(new DOMException('', 'AbortError'))))
    return Promise.race([answer, gone])
  })
  return asked
}

const floats = (data: Float32Array, shape: number[]) => new Response(data.slice().buffer, { headers: { 'x-shape': shape.join(','), 'content-type': 'application/octet-stream' } })
let api: typeof import('./api')

beforeEach(async () => {
  vi.resetModules()
  vi.stubGlobal('window', {})
  vi.stubGlobal('document', { baseURI: 'http://here/explore/#map?text=/a' })
  api = await import('./api')
})
afterEach(() => vi.unstubAllGlobals())

describe('the server', () => {
  it('is asked beside the page, and not twice for the same', async () => {
    const asked = serve({ '/explore/api/runs/r1/tensors/x.pattern?h=1&t=2': () => floats(numbers.subarray(20, 24), [4]) })
    const [a, b] = await Promise.all([api.tensor(run('r1'), 'x.pattern', { t: 2, h: 1 }), api.tensor(run('r1'), 'x.pattern', { h: 1, t: 2 })])
    expect(asked).toEqual(['GET /explore/api/runs/r1/tensors/x.pattern?h=1&t=2'])
    expect(b).toBe(a)
    expect([a.axes, a.shape, [...a.data]]).toEqual(['S', [4], [...numbers.subarray(20, 24)]])
  })

  it('is not asked for a part of what is already here', async () => {
    const asked = serve({ '/explore/api/runs/r2/tensors/x.pattern': () => floats(numbers, [2, 3, 4]) })
    await api.tensor(run('r2'), 'x.pattern')
    const part = await api.tensor(run('r2'), 'x.pattern', { h: 1 })
    expect([part.axes, part.shape, [...part.data]]).toEqual(['TS', [3, 4], [...numbers.subarray(12)]])
    expect(asked).toHaveLength(1)
  })

  it('is asked again after a failure, which is told in its own words', async () => {
    let times = 0
    serve({ '/explore/api/worked': () => (times++ ? Response.json([]) : Response.json({ error: 'too busy; try again' }, { status: 503 })) })
    await expect(api.worked()).rejects.toMatchObject({ status: 503, message: 'too busy; try again' })
    expect(await api.worked()).toEqual([])
  })

  it('that is gone, or speaks no JSON, still gives one line', async () => {
    vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')))
    await expect(api.models()).rejects.toMatchObject({ status: 0, message: expect.stringContaining('glassformer explore') })
    serve({ '/explore/api/models': () => new Response('<html>', { status: 502, statusText: 'Bad Gateway' }) })
    await expect(api.models()).rejects.toThrow('502 Bad Gateway')
  })

  it('drops an older run for a newer one, but not for one aside', async () => {
    let release = () => {}
    const wait = new Promise<void>((done) => (release = done))
    serve({ '/explore/api/runs': () => wait.then(() => Response.json(run('r3'))) })
    const [old, aside, now] = [api.run({ model: 'm', text: 'a' }), api.run({ model: 'm', text: 'b' }, 'aside'), api.run({ model: 'm', text: 'c' })]
    await expect(old).rejects.toMatchObject({ name: 'AbortError' })
    release()
    expect([(await aside).id, (await now).id]).toEqual(['r3', 'r3'])
  })
})

describe('a saved page', () => {
  it('answers by itself, slices what it holds, and says what it lacks', async () => {
    const asked = serve({})
    vi.stubGlobal('window', {
      __GLASSFORMER__: {
        responses: {
          'POST /api/runs {"model":"m","text":"我"}': { json: run('s1') },
          'GET /api/runs/s1/tensors/x.pattern': { base64: base64(numbers), shape: [2, 3, 4] },
          'GET /api/runs/s1/lens?stack=encoder': { status: 400, json: { error: 'no head' } },
        },
      },
    })
    const found = await api.run({ text: '我', model: 'm', target: undefined })
    const part = await api.tensor(found, 'x.pattern', { h: 0, t: 1 })
    expect([part.axes, [...part.data]]).toEqual(['S', [...numbers.subarray(4, 8)]])
    await expect(api.lens(found, 'encoder')).rejects.toMatchObject({ status: 400, message: 'no head' })
    await expect(api.run({ text: '你', model: 'm' })).rejects.toThrow('not in this saved page')
    expect(asked).toEqual([])
  })
})
