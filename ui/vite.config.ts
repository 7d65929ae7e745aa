/// <reference types="vitest/config" />
import { gzipSync } from 'node:zlib'

import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig, type Plugin } from 'vite'

/** Svelte's production errors are addresses of its site; a page of this machine names none. */
function local(): Plugin {
  return { name: 'local', renderChunk: (code) => code.replaceAll('https://svelte.dev/e/', 'svelte: ') }
}

/**
 * In mode "single": one page.html with everything inside, for `glassformer explore --html FILE`. Its script is packed, since it
 * would otherwise stand in the repository twice; browsers have unpacked such streams by themselves since 2023.
 */
function inline(): Plugin {
  const unpack = (packed: string) =>
    `const bytes = Uint8Array.from(atob('${packed}'), (c) => c.charCodeAt(0));` +
    `const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));` +
    `const script = document.createElement('script');script.type = 'module';script.textContent = await new Response(stream).text();` +
    `document.body.append(script)`
  return {
    name: 'inline',
    enforce: 'post',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const page = bundle['index.html']
        if (page?.type !== 'asset') return
        let html = String(page.source)
        for (const [name, file] of Object.entries(bundle)) {
          if (file.type === 'chunk') {
            const packed = gzipSync(file.code, { level: 9 }).toString('base64')
            html = html.replace(/<script type="module"[^>]*><\/script>/, () => `<script type="module">${unpack(packed)}</script>`)
          } else if (name.endsWith('.css')) {
            html = html.replace(/<link rel="stylesheet"[^>]*>/, () => `<style>${file.source}</style>`)
          } else continue
          delete bundle[name]
        }
        delete bundle['index.html']
        this.emitFile({ type: 'asset', fileName: 'page.html', source: html })
      },
    },
  }
}

export default defineConfig(({ mode }) => {
  const single = mode === 'single'
  return {
    base: './',
    plugins: [svelte(), local(), single && inline()],
    build: {
      outDir: '../src/glassformer/explore/static',
      emptyOutDir: !single,
      target: 'es2022',
      sourcemap: false,
      modulePreload: { polyfill: false },
      cssCodeSplit: !single,
      rolldownOptions: single ? { output: { codeSplitting: false } } : {},
    },
    server: { proxy: { '/api': 'http://127.0.0.1:8765' } },
    test: { include: ['src/**/*.test.ts'], environment: 'node' },
  }
})
