// Settings of the model that all families share.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr Setting kModelSettings[] = {
    {"model.name", "--model", "NAME", "", "architecture", kTrain, FIELD(model.name), kFixed},
    {"model.layers", "--layers", "L", "", "number of layers", kTrain, FIELD(model.layers),
     between(1, kMaxLayers), kFixed, formerly("model.levels", "--levels")},
    {"model.width", "--width", "D", "", "width of the residual stream", kTrain, FIELD(model.width),
     between(1, kMaxWidth), kFixed},
    {"model.heads", "--heads", "NH", "", "number of attention heads", kTrain, FIELD(model.heads),
     between(1, kMaxHeads), kFixed},
    {"model.vocab", "--vocab", "V", "", "vocabulary size; default: that of the data, 256 for bytes",
     kTrain, FIELD(model.vocab), between(1, kMaxVocab), kFixed},
    {"model.dropout", "--dropout", "P", "", "dropout probability", kTrain, FIELD(model.dropout),
     from_to_below(0, 1), kFixed},
};

}  // namespace

std::span<const Setting> model() noexcept { return kModelSettings; }

}  // namespace dtrain::config::tables
