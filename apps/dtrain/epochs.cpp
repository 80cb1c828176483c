#include "epochs.h"

#include <cmath>

#include "dtrain/base/error.h"
#include "dtrain/config/schema.h"
#include "dtrain/data/split.h"

namespace dtrain::app {

std::int64_t steps_of_epochs(const config::Config& config) {
  const data::Split split = data::open_split(data::split_options(config));
  const double samples = std::ceil(config.train.epochs * static_cast<double>(split.train.size()));
  const double steps = std::ceil(samples / static_cast<double>(config.batch.global));
  const double most = config::find_key("train.steps")->range.highest;
  if (steps > most) {
    base::fail(base::ErrorKind::usage,
               "--epochs {} over {} samples in batches of {} are {:.3g} steps, more than {:.3g}: "
               "lower it",
               config.train.epochs, split.train.size(), config.batch.global, steps, most);
  }
  return static_cast<std::int64_t>(steps);
}

}  // namespace dtrain::app
