#!/bin/sh
# What the tests of the page need besides Python: Node.js's packages in ui/, and a Chromium with a Chinese font.
set -eu
cd "$(dirname "$0")/../.."
if command -v npm > /dev/null; then
  (cd ui && npm ci --silent --no-audit --no-fund)
else
  echo 'No npm: the tests that build the page will be skipped. Install Node.js 20 or newer.' >&2
fi
if ! command -v chromium > /dev/null && ! command -v chromium-browser > /dev/null && ! command -v google-chrome > /dev/null; then
  if command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
    apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium fonts-noto-cjk > /dev/null
  else
    echo 'No Chromium: the tests that drive the page will be skipped. Install the package chromium.' >&2
  fi
fi
