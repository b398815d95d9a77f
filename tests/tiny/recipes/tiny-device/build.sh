# A code object of one target that is nothing but its ELF header: enough for every reader of headers.
set -eu
test "$FLYDSL_GPU_ARCH $GPU_ARCHS" = "$1 $1"
case $1 in
    gfx942) mach='\x4c' ;;
    gfx950) mach='\x4f' ;;
    gfx1201) mach='\x4e' ;;
esac
folder=$PREFIX/share/tiny-device/$1
mkdir -p "$folder"
{
    printf '\x7fELF\x02\x01\x01\x40\x03\0\0\0\0\0\0\0'   # 64 bit, little endian, HSA, version 5
    printf '\x03\0\xe0\0\x01\0\0\0'                      # shared object, AMDGPU
    printf '\0%.0s' $(seq 24)                            # no entry, no program or section headers
    printf "$mach"'\x05\0\0\x40\0\x38\0\0\0\x40\0\0\0\0\0'
} > "$folder/kernel.co"
