// The main function of every test program.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "dtrain/base/host/process.h"

int main(int argc, char** argv) {
  dtrain::base::ensure_standard_streams();  // as dtrain: a peer that is gone must not end a rank
  dtrain::base::end_process(Catch::Session().run(argc, argv));
}
