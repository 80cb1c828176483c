#include "dtrain/config/foreign_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "dtrain/config/family.h"
#include "dtrain/config/foreign_table.h"

namespace dtrain::config {
namespace {

// "--N_Layer" -> "n-layer".
std::string normal_form(std::string_view name) {
  name.remove_prefix(std::min(name.find_first_not_of('-'), name.size()));
  std::string normal;
  for (const char c : name) {
    normal += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return normal;
}

// One entry per name of a row.
void add_names(const ForeignNames& row, std::vector<ForeignName>& names) {
  for (std::string_view rest = row.names; !rest.empty();) {
    const std::size_t space = std::min(rest.find(' '), rest.size());
    names.push_back({rest.substr(0, space), row.key, row.note});
    rest.remove_prefix(std::min(space + 1, rest.size()));
  }
}

// dtrain plan starts no ranks: it is told their number.
bool counts_ranks(std::string_view name) {
  constexpr std::string_view kNames[] = {"n",      "np",     "gpus",      "ngpus",
                                         "n-gpus", "nprocs", "num-gpus",  "num-processes",
                                         "nproc",  "ntasks", "num-ranks", "world-size"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

}  // namespace

std::span<const ForeignName> foreign_names() noexcept {
  static const std::vector<ForeignName> all = [] {
    std::vector<ForeignName> names;
    for (const ForeignNames& row : foreign_table()) add_names(row, names);
    for (const Family* family : families()) {
      names.insert(names.end(), family->foreign_names.begin(), family->foreign_names.end());
    }
    return names;
  }();
  return all;
}

const ForeignName* find_foreign(std::string_view name) {
  std::string wanted = normal_form(name);
  auto found = std::ranges::find(foreign_names(), wanted, &ForeignName::name);
  // "training.max-steps": the group is theirs, too.
  const std::size_t dot = wanted.rfind('.');
  if (found == foreign_names().end() && dot != wanted.npos) {
    wanted.erase(0, dot + 1);
    found = std::ranges::find(foreign_names(), wanted, &ForeignName::name);
  }
  return found == foreign_names().end() ? nullptr : &*found;
}

std::string_view key_meant_in(Command command, std::string_view key) {
  constexpr std::string_view kOfModels[] = {"model.name", "checkpoint.resume",
                                            "checkpoint.init_from", "run.dir"};
  const bool is_of_model = std::ranges::find(kOfModels, key) != std::end(kOfModels);
  const bool reads_model = command == Command::generate || command == Command::evaluate;
  return is_of_model && reads_model ? "generate.from" : key;
}

std::string foreign_advice(std::string_view name, NameKind kind, Command command) {
  const ForeignName* foreign = find_foreign(name);
  if (foreign == nullptr) return {};
  if (command == Command::plan && counts_ranks(foreign->name)) return ": use --ranks";
  if (foreign->key.empty()) return fmt::format(": {}", foreign->note);
  const bool is_output = foreign->name.starts_with("out") || foreign->name.starts_with("save");
  if (command == Command::generate && is_output) {
    return ": the text goes to standard output (> FILE); the run that writes it is --from RUN";
  }
  const Setting* setting = find_key(key_meant_in(command, foreign->key));
  if (setting == nullptr || !setting->is_for(command)) return {};
  const bool has_note = !foreign->note.empty() && setting->key == foreign->key;
  return fmt::format(": use {}{}", kind == NameKind::flag ? setting->flag : setting->key,
                     has_note ? fmt::format(" ({})", foreign->note) : "");
}

}  // namespace dtrain::config
