// Advice about arguments that a subcommand does not know.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/config/schema.h"

namespace dtrain::config {

/// The arguments of a subcommand, and what it would have understood.
struct KnownFlags {
  Command command;
  const std::vector<std::string>& arguments;
  std::vector<std::string_view> flags;  ///< all of them, "--help" included
};

/// Throws: Error{usage} that names `word`, the first of the arguments that is no flag of the
///         command, and what was probably meant.
[[noreturn]] void refuse_word(const std::string& word, const KnownFlags& known);

/// Advice on a word where none belongs: "; it is a file: give it as --data book.txt" and the
/// like; empty where nothing is known of it.
[[nodiscard]] std::string advice_for_word(const std::string& word, Command command);

}  // namespace dtrain::config
