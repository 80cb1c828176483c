#include "help.h"

#include <fmt/format.h>

#include "dtrain/config/help.h"
#include "dtrain/config/schema.h"

namespace dtrain::app {
namespace {

constexpr const char* kUsage =
    R"(dtrain trains BDH language models, with one process or with many ranks under dtrun.

  dtrain [train] --data FILE [--config FILE] [--run-dir DIR] [flags]
  dtrun -n 2 -- dtrain --strategy ddp --data FILE [flags]

)";

constexpr const char* kSubcommands =
    R"(subcommands
  train                     train a model (the default)
  data TOOL                 train tokenizers, make token files, compute n-gram baselines
  generate                  continue a text with a trained model
  evaluate                  measure the loss of a trained model on a file
  verify                    compare with golden numbers of the reference implementation
  checkpoint TOOL           list, inspect, verify, compare, export and import checkpoints
  report RUN...             show how runs went: one page with curves, or a table
  doctor                    check the machines and files that a job with these flags would use
  plan                      rank the layouts of a job by predicted speed; show their memory
  schedule                  show the timeline of a pipeline's stages without running it
  completion SHELL          print a completion script for bash or zsh
  settings                  print docs/settings.md
  help [NAME]               show this, the flags of a subcommand, or a setting: dtrain help lr
  --version                 print version and commit

)";

constexpr const char* kData =
    R"(dtrain data prepare INPUT... --output FILE [flags]
  Makes one token file of files, and of all files in folders but hidden ones: of texts, of JSON
  lines, of either as .gz or .zst, or of token files (.bin) of nanoGPT and llm.c.

  --output FILE             the token file
  --tokenizer FILE.model    a SentencePiece model; without it every byte is a token
  --field NAME              the inputs are JSON lines, whose texts are in this field
  --dataset wikitext        the inputs are raw files of WikiText, whose articles are the documents;
                            of a folder of them three token files are made in the folder --output
  --vocab N                 vocabulary of a .bin file (default: GPT-2's, or Llama 3's)
  --threads N               (default: all cores); the tokens do not depend on it
  --overwrite               replace the output if it exists

dtrain data tokenizer train INPUT... --output FILE.model --vocab-size N [flags]
  Makes a SentencePiece model of the same inputs. It gives back every text unchanged.

  --vocab-size N            tokens, the 256 bytes included
  --type bpe|unigram        (default bpe)
  --field NAME, --dataset wikitext, --overwrite    as above; of a folder of WikiText it reads
                            wiki.train.raw alone

dtrain data baseline --data FILE [--val-fraction F | --val-data FILE] [flags of train]
  Prints as JSON the validation loss, in nats per token, of bigram and trigram models of
  bytes, on the text that a training run with the same flags is evaluated on.

dtrain data info FILE
  Prints what a token file or a text holds: tokens, vocabulary, tokenizer, documents.
)";

constexpr std::string_view kCheckpoint =
    R"(dtrain checkpoint list RUN
  One line for each checkpoint of a run folder, newest first, and for final/.

dtrain checkpoint inspect PATH
  What a checkpoint holds: step, data position, layout, and every tensor.

dtrain checkpoint verify PATH
  Reads every byte and compares it with the checksums; of a run folder all checkpoints and final/.
  PATH may be a model file or its folder, too. One line for each damaged file, exit status 6; else
  "ok".

dtrain checkpoint diff A B
  Compares all tensors of two checkpoints, whatever layouts wrote them. One line for each tensor
  that differs: where first, both values, the largest differences. Exit status 0 if all are equal,
  7 if not.

dtrain checkpoint export PATH FILE [--dtype NAME] [--overwrite]
  Writes the weights as one safetensors file with the reference's names and shapes.

dtrain checkpoint import FILE FOLDER{}
  Writes a checkpoint from such a file, for --init-from.

PATH, A and B are checkpoints (RUN/checkpoints/step-N), or run folders, for their newest one.
)";

constexpr const char* kSchedule =
    R"(dtrain schedule [--schedule-pp NAME] --pp P --microbatches M
  Shows what each stage of a pipeline does in one step, without running it: F3 is the forward of
  microbatch 3, B3---- its backward, F3.1 that through the stage's second part of the model, and a
  dot is a forward's time without work. Then the bubble, and how many microbatches' activations each
  stage keeps at once (those of one of V parts count as 1/V).

  --schedule-pp NAME        {} (default 1f1b)
  --pp P                    stages
  --microbatches M          of each stage and step: --grad-accum of a run

Time is that of stages of equal cost whose backwards take twice as long as their forwards.
docs/pipeline.md explains the schedules.
)";

constexpr const char* kReport =
    R"(dtrain report FOLDER... [--output FILE.html] [--overwrite]
  Writes one HTML page that compares runs and prints its path. FOLDER is a run folder, or a folder
  whose runs are all included. The page has a table of the runs, curves of loss, validation loss,
  gradient norm, learning rate, speed, waits, memory and communication, the settings that differ,
  and each run's layout, machine, starts, checkpoints, warnings and samples. It needs no network.

dtrain report FOLDER... --csv FILE [--overwrite]
  Writes the figures of all steps as comma-separated values.

  --output FILE             the page; - for standard output (default FOLDER/report.html, or
                            report.html here for several folders)
  --csv FILE                the table; - for standard output
  --overwrite               replace a file that is not a report
)";

constexpr const char* kCompletion =
    R"(dtrain completion bash|zsh
  Prints a script with which the shell completes subcommands, flags and their words, of dtrain and,
  after --, of dtrain under dtrun:

  source <(dtrain completion bash)     # in ~/.bashrc
  source <(dtrain completion zsh)      # in ~/.zshrc
)";

constexpr const char* kSettings =
    R"(dtrain settings
  Prints docs/settings.md: every setting with key, flag, default, unit, range and meaning. The flags
  of one subcommand are in its --help; the values of a run are printed by --print-config.
)";

}  // namespace

std::string usage_help() {
  return kUsage + config::most_used_flags() + kSubcommands +
         "dtrain --help lists all flags, dtrain help NAME explains one.\n";
}

std::string overview_help() {
  return kUsage + config::most_used_flags() + kSubcommands +
         config::flags_help(config::Command::train);
}

std::string command_help(config::Command command) {
  std::string usage;
  switch (command) {
    case config::Command::train:
      return overview_help();
    case config::Command::generate:
      usage = "dtrain generate --from RUN [--prompt TEXT | --prompt-file FILE] [flags]\n\n";
      break;
    case config::Command::evaluate:
      usage =
          "dtrain evaluate --from RUN --data FILE [--val-fraction F] [flags]\n"
          "  Prints as JSON the model's loss on a file, or on its end, in nats per token, and its\n"
          "  perplexity. Settings that are not given are those that the run trained with; all of "
          "the\n"
          "  file is read.\n\n";
      break;
    case config::Command::verify:
      usage =
          "dtrain verify --golden FIXTURE.safetensors [--trajectory FILE.json --name NAME] "
          "[flags]\n"
          "  Prints one JSON object in one line.\n\n";
      break;
    case config::Command::doctor:
      usage =
          "dtrain doctor [flags of train]\n"
          "  Checks on all ranks what a job with these flags needs, prints a line for each fact, "
          "and\n"
          "  names what is wrong: dtrun -n 2 -- dtrain doctor --run-dir runs/mine\n\n";
      break;
    case config::Command::plan:
      usage =
          "dtrain plan [flags of train] [--ranks N] [--device-memory SIZE] [--link SIZE] ...\n"
          "  Ranks the layouts of a job: predicted memory, bytes, bubble and time of a step, why "
          "others\n"
          "  do not fit, and the command line of the best. Flags that say a layout have no "
          "effect.\n\n";
      break;
    case config::Command::export_checkpoint:
      usage = "dtrain checkpoint export PATH FILE [flags]\n\n";
      break;
    case config::Command::import_checkpoint:
      usage = "dtrain checkpoint import FILE FOLDER [flags]\n\n";
      break;
  }
  return usage + config::flags_help(command);
}

std::string data_help() { return kData; }

std::string checkpoint_help() {
  std::string flags;  // " [--levels L] [--heads NH]"
  for (const config::Setting& setting : config::settings()) {
    if (!setting.key.starts_with("import.") || setting.is_word()) continue;
    flags += fmt::format(" [{} {}]", setting.flag, setting.value_name);
  }
  return fmt::format(kCheckpoint, flags);
}

std::string completion_help() { return kCompletion; }
std::string report_help() { return kReport; }
std::string schedule_help() { return fmt::format(kSchedule, config::kPipelineChoices); }

std::string settings_help() { return kSettings; }

}  // namespace dtrain::app
