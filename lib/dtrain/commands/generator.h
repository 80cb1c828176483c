// dtrain generate: continues a text with a trained model, one byte at a time.
#pragma once

#include <functional>
#include <string_view>

#include "dtrain/config/config.h"

namespace dtrain::commands {

/// Takes the next bytes of the text.
using TextSink = std::function<void(std::string_view bytes)>;

/// Gives `write` the prompt of config.generate, then max_tokens bytes, each as soon as it is drawn.
/// An empty prompt starts a text after a newline that is not written. The same file, settings and
/// seed give the same bytes on one machine.
///
/// Throws: Error{checkpoint} if the model file is missing, damaged or no byte model, or does not
///         say its number of levels; Error{usage} if prompt and tokens exceed the positions of the
///         model; Error{numerics} from sampling; what `write` throws.
void generate(const config::Config& config, const TextSink& write);

}  // namespace dtrain::commands
