#include "dtrain/model/bdh/internal/fused/level_rows_body.h"

namespace dtrain::model::bdh {

const LevelRows<float, float> kFloatRowsBaseline = kRows<float, float>;
const LevelRows<double, double> kDoubleRowsBaseline = kRows<double, double>;
const LevelRows<Bfloat16Bits, float> kBfloat16RowsBaseline = kRows<Bfloat16Bits, float>;

}  // namespace dtrain::model::bdh
