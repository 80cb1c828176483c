// The last committed step of each run that a job trains.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace launcher {

/// The committed steps that ranks have reported, by the name of the run: a script may train several
/// runs, one after the other. Holds at most 1,000 runs, which a rank's environment has room for;
/// ignores later ones.
class CommittedSteps {
 public:
  /// Replaces the step of a run. Ignores a negative one.
  void set(const std::string& run, std::int64_t step);
  /// Sets all of `newer`.
  void update(const CommittedSteps& newer);
  /// Sets those of `other` that are higher. Returns whether there are any.
  [[nodiscard]] bool raise(const CommittedSteps& other);

  [[nodiscard]] bool empty() const { return steps_.empty(); }
  /// "RUN=STEP RUN=STEP", as ranks find it in DTRUN_COMMITTED.
  [[nodiscard]] std::string text() const;

 private:
  std::map<std::string, std::int64_t> steps_;
};

}  // namespace launcher
