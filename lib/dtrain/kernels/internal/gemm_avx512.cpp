#define DTRAIN_VECTOR_BYTES 64
#define DTRAIN_TILE_BYTES 128
#define DTRAIN_TILE_ROWS 8
#include "dtrain/kernels/internal/gemm_body.h"

namespace dtrain::kernels {

const GemmKernels<float> kFloatGemmAvx512 = kKernels<float>;
const GemmKernels<double> kDoubleGemmAvx512 = kKernels<double>;

}  // namespace dtrain::kernels
