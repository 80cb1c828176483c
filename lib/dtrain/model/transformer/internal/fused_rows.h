// Row operations that make one pass over memory, on the CPU in float32, float64 and bfloat16.
#pragma once

#include "dtrain/model/transformer/row_operations.h"

namespace dtrain::model {

extern const RowOperations kFusedRows;

}  // namespace dtrain::model
