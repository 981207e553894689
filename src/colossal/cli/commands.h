// The commands of the program. A new one is a source x.cpp, its declaration here and a row in commands.cpp; `colossal
// help`, the suggestions for a misspelt name and the tests read the same table. This header needs no LibTorch.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"

namespace colossal::comm {
class Devices;
}
namespace colossal::run {
struct Program;
}

namespace colossal::cli {

struct Command {
  const char* name;
  const char* help;                          // one line
  std::function<int(const Arguments&)> run;  // returns the exit status; throws Error, UsageError or HelpWanted
};

/// Returns the commands of `program`, which must outlive them. Configs and folders may name the architectures and
/// objectives of `program`; null = only those of the library.
std::vector<Command> commands(const run::Program* program = nullptr);

/// Returns the command with this name in `commands`, or nullptr.
const Command* find_command(const std::vector<Command>& commands, const std::string& name);

std::vector<std::string> names_of(const std::vector<Command>& commands);

/// Runs the command that argv[1] names, among commands(program), and returns the exit status of the process: see
/// cli/main.h.
int run_program(int argc, char** argv, const run::Program* program);

// The functions of the commands. A `program` has the models, objectives and tables that a config, a folder or a file
// may name; null = those of the library.

/// `colossal train CONFIG [--resume | --overwrite] [--section.key=value ...]`: trains a model. `devices` are the
/// devices from which [run] device chooses; without it, CUDA's. Ranks that this command starts itself are separate
/// programs and always use CUDA's.
int train(const Arguments& arguments, const run::Program* program);
int train(const Arguments& arguments, const run::Program* program, const comm::Devices& devices);

/// `colossal generate --from FOLDER --prompt TEXT [--temperature ...] [--parallel.tensor=N]`: generates text.
int generate(const Arguments& arguments, const run::Program* program);

/// `colossal chat`: runs a conversation in the terminal with a model of a folder or file that has a chat template.
int chat(const Arguments& arguments, const run::Program* program);

/// `colossal serve`: serves a model over HTTP until a stop signal.
int serve(const Arguments& arguments, const run::Program* program);

/// `colossal embed`: computes a vector for each text.
int embed(const Arguments& arguments, const run::Program* program);

/// `colossal evaluate`: measures how well a model predicts a text.
int evaluate(const Arguments& arguments, const run::Program* program);

/// `colossal score --from FOLDER [--input FILE]`: prints a line of JSON with the scores of a reward model for each line
/// of chats, pairs or rankings.
int score(const Arguments& arguments, const run::Program* program);

/// `colossal draw --from FOLDER --prompt TEXT --to out.png`: draws pictures.
int draw(const Arguments& arguments, const run::Program* program);

/// `colossal fold --from FOLDER --input x.fasta --to FOLDER`: folds proteins.
int fold(const Arguments& arguments, const run::Program* program);

/// `colossal compare A B [--json]`: prints how near the CA atoms of a structure are to those of a reference. Errors:
/// those of protein::read_structure() and protein::compare().
int compare(const Arguments& arguments);

/// `colossal latents --from FOLDER --data.path=PICTURES --to CACHE`: encodes pictures and captions for training.
int latents(const Arguments& arguments, const run::Program* program);

/// `colossal features --input x.fasta --msa x.a3m --to x.safetensors`: writes what a folding model reads of a chain.
///
/// Errors: errors of protein::read_fasta(), protein::read_alignment(), data::read_templates(), data::make_features()
///         and run::write_features(); several records, or several chains in a record.
int features(const Arguments& arguments);

/// `colossal quantize`: quantizes weights to 8 or 4 bits.
int quantize(const Arguments& arguments, const run::Program* program);

/// `colossal export --from FOLDER --to FOLDER`: writes a run or Hugging Face folder as a Hugging Face folder.
int export_model(const Arguments& arguments, const run::Program* program);

/// `colossal expand --from FOLDER --tokenizer NEW --to FOLDER`: writes a Hugging Face folder with the vocabulary of a
/// new tokenizer (run/expanded_folder.h).
int expand(const Arguments& arguments, const run::Program* program);

/// `colossal report`: writes one page that shows the training runs whose folders the arguments name. Errors: errors of
/// report::read_run(); the page cannot be written.
int report(const Arguments& arguments);

/// `colossal rollouts RUN [--step N] [--json]`: prints the answers that a run drew in training.
int rollouts(const Arguments& arguments);

/// `colossal run --ranks N COMMAND ...`: starts N copies of `colossal COMMAND ...` on this host as the ranks of one
/// world. `colossal run --ranks N -- PROGRAM ...`: the same with copies of any program, which is searched in PATH.
int run(const Arguments& arguments);

/// `colossal plan CONFIG ...`: predicts a step of a run. `colossal plan --graph FILE ...`: lists the nodes of a graph
/// with their costs, the strategies of a node, or the fastest plan on a mesh. cli/plan.h has the forms of the command.
int plan(const Arguments& arguments, const run::Program* program);

/// `colossal schedule --name NAME --stages P --micro-batches M ...`: draws a pipeline schedule, or compares all
/// schedules.
int schedule(const Arguments& arguments);

/// `colossal schedule-lr [CONFIG] [--optimizer.schedule=NAME ...] [--compare] [--output FILE.svg]`: plots the learning
/// rate of every step of a run, in the terminal and as a picture. With --compare it plots every schedule.
int schedule_lr(const Arguments& arguments, const run::Program* program = nullptr);

/// `colossal tokenize --tokenizer NAME [FILE]`: converts text to token ids or pieces, and back. Reads a file or
/// standard input and writes one JSON line per text to standard output: [1, 2] for ids, ["a", "b"] for pieces. A text
/// is a line without its final \n (a \r before it is part of the text); with --whole the whole input is one text.
/// --json reads lines that are JSON strings, or objects with a string in "text". --decode reads one list of ids per
/// line and writes the texts as JSON strings, with U+FFFD for bytes that are not UTF-8. --threads threads encode or
/// decode the lines; the output keeps their order. --chat reads chats (text::parse_chat), which the chat template of
/// the tokenizer's folder or --chat-template renders to ids, or with --rendered to texts as JSON strings. --labels
/// reads every form of data::chat_line_of() and writes {"ids": [1, 2], "labels": [-100, 2]} for each line, or
/// {"chosen": ..., "rejected": ...} for a pair, {"answers": [...]} for a ranking; --answers selects what counts.
/// --count writes only the total number of tokens.
///
/// Errors: errors of text::make_tokenizer(), text::ChatTemplate and data::ChatEncoder; a line that is not JSON of the
///         expected kind, with its number; an id outside of the vocabulary; a file that cannot be read to its end; a
///         failed write.
int tokenize(const Arguments& arguments);

/// `colossal tokenizer train --to FOLDER FILE...`: learns a vocabulary of --vocabulary tokens from the lines of files
/// and writes tokenizer.json and tokenizer_config.json, which `--tokenizer FOLDER` reads. --kind: bpe (byte-level) or
/// unigram. A text is a line with its line end, or with --json a JSON string or an object with a string in "text".
/// --special tokens get the first ids; --end is the token that closes a document. --like NAME: split and spell text
/// like that tokenizer.json. If a file cannot be read, no file is written.
///
/// Errors: errors of text::TokenizerTrainer; a file that cannot be read; a line that is not JSON of the expected kind,
///         with its number; a folder that already holds a tokenizer or cannot be written.
int tokenizer(const Arguments& arguments);

/// `colossal bench NAME`: runs the benchmark that the first argument names (cli/bench/bench.h). Without arguments, it
/// lists all benchmarks.
int bench(const Arguments& arguments);

/// `colossal models`: prints each architecture that [model] may name, with its presets and its own keys.
int list_models(const Arguments& arguments, const run::Program* program);

/// `colossal info`: prints LibTorch, processor, memory, devices, and measured peaks. Cost: about two seconds of
/// measuring.
int info(const Arguments& arguments);

/// `colossal help`, `colossal help COMMAND`, `colossal help config [SECTION]`. A final `--markdown` after `help` or
/// `help config` prints the reference pages of docs (cli/reference.h), including the architectures of `program`.
int help(const Arguments& arguments, const std::vector<Command>& commands, const run::Program* program = nullptr);

}  // namespace colossal::cli
