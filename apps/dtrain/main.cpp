#include "commands.h"
#include "ranks.h"

int main(int argc, char** argv) {
  try {
    return dtrain::app::run({argv + 1, argv + argc});
  } catch (...) {
    return dtrain::app::report_on_one_rank();
  }
}
