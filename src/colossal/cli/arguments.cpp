#include "colossal/cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/base/suggest.h"
#include "colossal/comm/launch/environment.h"

namespace colossal::cli {
namespace {

struct RenamedOption {
  const char *previous, *now;
};

/// Options whose previous names are accepted for one release.
constexpr RenamedOption kRenamedOptions[] = {
    {"--least-count", "--min-frequency"}, {"--guess", "--draft-tokens"},
    {"--sinks", "--attention-sinks"},     {"--cache", "--kv-cache"},
    {"--cache-type", "--kv-cache-dtype"}, {"--minima", "--zero-points"},
    {"--group", "--group-size"},
};

bool names(const std::string& word, const std::string& option) {
  return word == option || word.starts_with(option + "=");
}

/// Replaces previous names of the options of `app` by the present ones. Errors: an option under both names.
Arguments with_present_names(const CLI::App& app, Arguments words) {
  for (const auto& [previous, now] : kRenamedOptions) {
    if (app.get_option_no_throw(now) == nullptr || app.get_option_no_throw(previous) != nullptr) continue;
    const auto is_now = [&, option = now](const std::string& word) { return names(word, option); };
    const bool has_both = std::any_of(words.begin(), words.end(), is_now);
    bool is_given = false;
    for (std::string& word : words) {
      if (!names(word, previous)) continue;
      if (has_both)
        throw UsageError(
            concat(app.get_name(), ": ", previous, " is now ", now, ", and both are given: leave out ", previous));
      word.replace(0, std::string(previous).size(), now);
      is_given = true;
    }
    if (!is_given) continue;
    // Ranks that our launcher started have the words of the process that started them, which has warned already.
    const comm::Environment environment = comm::read_environment(comm::process_variables());
    if (environment.launcher != comm::Launcher::Colossal && environment.rank == 0)
      std::fprintf(stderr, "colossal: %s is now %s\n", previous, now);
  }
  return words;
}

/// CLI11 prints a range without an upper bound with all 309 digits of the largest double.
std::string without_largest_double(std::string message) {
  const std::string range =
      " not in range " + std::to_string(0.0) + " to " + std::to_string(std::numeric_limits<double>::max());
  const size_t at = message.find(range);
  return at == std::string::npos ? message : message.replace(at, range.size(), " is too small");
}

/// Returns the values that an option takes. CLI11 joins a type and its checks: "INT:POSITIVE", "TEXT:{a,b}",
/// "INT:INT in [1 - 9]".
std::string values_of(const CLI::Option& option) {
  std::string type = option.get_type_name();
  const size_t colon = type.find(':');
  if (colon == std::string::npos) return type;
  const std::string name = type.substr(0, colon), check = type.substr(colon + 1);
  if (check == "POSITIVE") return name + " > 0";
  if (check == "NONNEGATIVE") return name + " >= 0";
  if (!check.empty() && check[0] == '{') {
    std::string choices;
    for (const char c : check.substr(1, check.size() - 2)) choices += c == ',' ? ", " : std::string(1, c);
    return choices;
  }
  return check;
}

std::string markdown_row(const CLI::Option& option) {
  const bool is_flag = option.get_items_expected_max() == 0;
  std::string values = is_flag ? "" : values_of(option);
  if (option.get_required()) values += ", required";
  if (option.get_items_expected_max() > 1) values += ", several";
  std::string names;
  for (const std::string& name : option.get_snames()) names += (names.empty() ? "`-" : "`, `-") + name;
  for (const std::string& name : option.get_lnames()) names += (names.empty() ? "`--" : "`, `--") + name;
  if (names.empty()) names = "`" + option.get_single_name();
  std::string meaning = option.get_description();
  for (const CLI::Option* other : option.get_needs()) meaning += "; needs `" + other->get_name() + "`";
  for (const CLI::Option* other : option.get_excludes()) meaning += "; not with `" + other->get_name() + "`";
  const std::string initial = option.get_default_str();
  return "| " + names + "` | " + markdown_cell(values) + " | " +
         (initial.empty() || is_flag ? "" : "`" + markdown_cell(initial) + "`") + " | " + markdown_cell(meaning) +
         " |\n";
}

/// Returns a section of docs/reference/cli.md.
std::string markdown_help(const CLI::App& app) {
  std::string usage = app.get_name(), rows;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_name() == "--help" || option->get_group().empty()) continue;  // no group: not for users
    rows += markdown_row(*option);
    if (!option->get_positional()) continue;
    const std::string name = option->get_single_name();
    usage += option->get_required() ? " " + name : " [" + name + "]";
  }
  std::string text = "## " + app.get_name() + "\n\n" + app.get_description() + "\n\nUsage: `" + usage + " [options]`\n";
  if (!rows.empty()) text += "\n| argument | value | default | meaning |\n|---|---|---|---|\n" + rows;
  return text;
}

/// Returns why the command line is invalid. If an option is unknown, the message suggests the most similar option of
/// `app`.
std::string reason(const CLI::App& app, const CLI::ParseError& error) {
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr) return without_largest_double(error.what());
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames())
      if (!option->get_group().empty()) known.push_back("--" + name);
  for (const std::string& word : app.remaining())
    if (word.starts_with("--")) return "unknown option " + word + did_you_mean(word.substr(0, word.find('=')), known);
  return without_largest_double(error.what());
}

}  // namespace

void parse(CLI::App& app, const Arguments& arguments) {
  if (arguments == Arguments{kMarkdownHelp}) throw HelpWanted(markdown_help(app));
  const Arguments words = with_present_names(app, arguments);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForHelp&) {
    throw HelpWanted(app.help());
  } catch (const CLI::ParseError& error) {
    throw UsageError(app.get_name() + ": " + reason(app, error) + "; see `" + app.get_name() + " --help`");
  }
}

std::string help_of(const std::function<int(const Arguments&)>& command, const std::string& form) {
  try {
    command({form});
  } catch (const HelpWanted& help) {
    return help.what();
  }
  return "";
}

std::vector<std::string> given_options(const CLI::App& app, const std::vector<std::string>& names) {
  std::vector<std::string> given;
  for (const std::string& name : names)
    if (app.count(name) > 0) given.push_back(name);
  return given;
}

std::string subject_of(const std::vector<std::string>& names) {
  std::string subject;
  for (size_t i = 0; i < names.size(); ++i)
    subject += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return subject + (names.size() > 1 ? " have" : " has");
}

void refuse_options(const CLI::App& app, const std::vector<std::string>& names, const std::string& because) {
  const std::vector<std::string> given = given_options(app, names);
  if (!given.empty()) throw UsageError(app.get_name() + ": " + subject_of(given) + " no effect " + because);
}

std::vector<std::string> config_flags(const CLI::App& app) {
  std::vector<std::string> flags = app.remaining();
  for (const auto& flag : flags) {
    const bool is_flag = flag.compare(0, 2, "--") == 0 && flag.find('=') != std::string::npos;
    if (is_flag) continue;
    throw UsageError(app.get_name() + ": unknown option `" + flag +
                     "`; keys of the config are written --section.key=value; see `" + app.get_name() + " --help`");
  }
  return flags;
}

}  // namespace colossal::cli
