// Entry point of dtrain: sets up the process, runs the command, reports errors.
#include "commands.h"
#include "dtrain/base/host/process.h"
#include "ranks.h"

int main(int argc, char** argv) {
  dtrain::base::end_on_stop_signals();
  dtrain::base::ensure_standard_streams();
  dtrain::base::raise_open_file_limit();
  dtrain::base::ignore_file_size_signal();
  dtrain::app::report_stops_on_one_rank("");
  try {
    dtrain::base::end_process(dtrain::app::run({argv + 1, argv + argc}));
  } catch (...) {
    dtrain::base::end_process(dtrain::app::report_error_once());
  }
}
