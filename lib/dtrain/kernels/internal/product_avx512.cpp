#define DTRAIN_VECTOR_BYTES 64
#define DTRAIN_TILE_BYTES 128
#define DTRAIN_TILE_ROWS 8
#include "dtrain/kernels/internal/product_body.h"

namespace dtrain::kernels {

const ProductKernels<float> kFloatProductAvx512 = kKernels<float>;
const ProductKernels<double> kDoubleProductAvx512 = kKernels<double>;

}  // namespace dtrain::kernels
