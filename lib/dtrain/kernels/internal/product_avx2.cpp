#define DTRAIN_VECTOR_BYTES 32
#define DTRAIN_TILE_BYTES 64
#define DTRAIN_TILE_ROWS 6
#include "dtrain/kernels/internal/product_body.h"

namespace dtrain::kernels {

const ProductKernels<float> kFloatProductAvx2 = kKernels<float>;
const ProductKernels<double> kDoubleProductAvx2 = kKernels<double>;

}  // namespace dtrain::kernels
