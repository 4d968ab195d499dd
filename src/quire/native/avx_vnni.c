#include "quire.h"
#if defined(__x86_64__)
#define TARGET __attribute__((target("avx2,fma,f16c,avxvnni")))
#define NAME(name) name##_avx_vnni
#define HAS_VNNI 1
#include "avx2.h"

const Ops quire_avx_vnni = OPS("AVX-VNNI");
#endif
