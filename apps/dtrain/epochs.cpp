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

std::vector<std::string> epoch_warnings(const config::Config& config, const data::Split& split) {
  constexpr double kMany = 1000;
  const std::int64_t steps = config.train.steps;
  const std::int64_t batch = config.batch.global;
  const double samples = static_cast<double>(steps) * static_cast<double>(batch);
  const std::vector<double> epochs = data::epochs_of(split.train, samples);
  std::vector<std::string> warnings;
  if (batch > split.train.size()) {
    const double times = static_cast<double>(batch) / static_cast<double>(split.train.size());
    warnings.push_back(
        fmt::format("each step of --global-batch {} takes the {} samples to train on {:.1f} times; "
                    "lower it",
                    batch, split.train.size(), times));
  }
  for (std::size_t i = 0; i < epochs.size(); ++i) {
    if (epochs[i] < kMany) continue;
    warnings.push_back(
        fmt::format("{} steps of {} sequences read {} {:.0f} times: the model will memorise it; "
                    "give more data, "
                    "or lower --steps or --global-batch",
                    steps, batch, split.train.sources()[i].samples.file().path(), epochs[i]));
  }
  return warnings;
}

}  // namespace dtrain::app
