// The commands dtrain data prepare and dtrain data tokenizer.
#pragma once

#include "commands.h"

namespace dtrain::app {

/// Both return the exit status.
///
/// Throws: Error{usage} or Error{data}, as data::prepare and data::train_tokenizer.
int run_prepare(const Arguments& arguments);
int run_tokenizer(const Arguments& arguments);

}  // namespace dtrain::app
