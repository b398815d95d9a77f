set -eu
mkdir -p "$PREFIX/lib/tiny" "$PREFIX/bin" "$PREFIX/etc/tiny"
printf 'data of the library\n' > "$PREFIX/lib/tiny/data"
head -c 200000 /dev/zero > "$PREFIX/lib/tiny/zeros"
printf '#!/bin/sh\nexec cat %s/lib/tiny/data\n' "$PREFIX" > "$PREFIX/bin/tiny"
chmod 755 "$PREFIX/bin/tiny"
ln -s ../../lib/tiny/data "$PREFIX/etc/tiny/link"
printf 'prefix=%s\n' "$PREFIX" > "$PREFIX/etc/tiny/.config"
ln -s tiny "$PREFIX/bin/tiny-link"
