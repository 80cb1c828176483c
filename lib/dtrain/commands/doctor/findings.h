// What dtrain doctor found: facts, and what is wrong.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::commands::doctor {

/// One thing that is wrong, in a line that says what to do.
struct Problem {
  base::ErrorKind kind;
  std::string text;
};

/// The report. Each line is given to `output` as soon as it is found. All ranks find the same
/// problems; facts may differ, and are rank 0's.
class Findings {
 public:
  using Output = std::function<void(std::string_view)>;
  explicit Findings(Output output) : output_(std::move(output)) {}

  void fact(std::string_view name, std::string_view value);
  /// Something that costs time, but fails no job.
  void note(std::string_view text) { fact("note", text); }
  void problem(base::ErrorKind kind, std::string text);
  /// What `error` says, which every rank has met.
  void problem(const base::Error& error) { problem(error.kind(), error.what()); }

  /// A fact that ranks may have different values of: the value, or each with its ranks.
  ///
  /// values: by rank.
  void fact_of_ranks(std::string_view name, std::span<const std::string> values);
  /// One that must be equal, else it is a problem. advice: what to do then.
  void equal_fact(std::string_view name, std::span<const std::string> values,
                  std::string_view advice);

  /// Throws: Error of the first problem's kind, with its text; nothing without one.
  void require_none() const;

 private:
  Output output_;
  std::vector<Problem> problems_;
};

/// "0-2,5", of ascending ranks.
[[nodiscard]] std::string rank_list(const std::vector<int>& ranks);

/// "A (ranks 0-2,5); B (rank 3)"; the value alone where all are equal.
[[nodiscard]] std::string by_rank(std::span<const std::string> values);

}  // namespace dtrain::commands::doctor
