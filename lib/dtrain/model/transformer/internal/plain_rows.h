// Row operations that call LibTorch's operators.
#pragma once

#include "dtrain/model/transformer/row_operations.h"

namespace dtrain::model {

extern const RowOperations kPlainRows;

}  // namespace dtrain::model
