// Settings of the training and validation data.
#include "dtrain/config/schema/internal/tables.h"

namespace dtrain::config::tables {
namespace {

constexpr Setting kDataSettings[] = {
    {"data.train", "--data", "FILE", "",
     "token file, or text that is read as bytes; FILE:WEIGHT,FILE:WEIGHT mixes several",
     kTrain | kEvaluate, FIELD(data.train)},
    {"data.validation", "--val-data", "FILE", "", "file for validation", kTrain,
     FIELD(data.validation)},
    {"data.val_fraction", "--val-fraction", "F", "",
     "fraction of --data, taken from its end, that is held out for validation", kTrain | kEvaluate,
     FIELD(data.val_fraction), from_to_below(0, 1), kNeedsNewData},
    {"data.seq_len", "--seq-len", "T", "tokens", "sequence length", kTrain | kEvaluate,
     FIELD(data.seq_len), between(1, kMaxPositions), kNeedsNewData},
};

}  // namespace

std::span<const Setting> data() noexcept { return kDataSettings; }

}  // namespace dtrain::config::tables
