// The subcommands. Each takes the arguments after its name and returns the exit status; errors are
// thrown.
#pragma once

#include <string>
#include <vector>

#include "dtrain/base/print.h"

namespace dtrain::app {

using Arguments = std::vector<std::string>;

/// Finds the subcommand (`train` where none is named) and runs it.
[[nodiscard]] int run(const Arguments& arguments);

[[nodiscard]] int run_train(const Arguments& arguments);
[[nodiscard]] int run_data(const Arguments& arguments);
[[nodiscard]] int run_generate(const Arguments& arguments);
[[nodiscard]] int run_evaluate(const Arguments& arguments);
[[nodiscard]] int run_verify(const Arguments& arguments);
[[nodiscard]] int run_checkpoint(const Arguments& arguments);
[[nodiscard]] int run_doctor(const Arguments& arguments);
[[nodiscard]] int run_plan(const Arguments& arguments);
[[nodiscard]] int run_completion(const Arguments& arguments);
[[nodiscard]] int run_report(const Arguments& arguments);
[[nodiscard]] int run_schedule(const Arguments& arguments);

using base::print;

}  // namespace dtrain::app
