// Prints random texts of the grammars that we make from JSON Schemas, for the script that checks them with another
// validator.
//
// Usage: colossal_json_schema_probe TEXTS SEED
//   reads a list of JSON from standard input, each item the text of a schema, and prints a list: {"texts": [...]} with
//   up to TEXTS texts of its grammar, or why we refuse it, {"error": ...}.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/grammar/json_schema.h"

namespace {

using namespace colossal;

constexpr size_t kLong = 150;       // bytes after which the walk prefers to close open brackets
constexpr size_t kMaxBytes = 4000;  // bytes after which the walk is abandoned

/// Returns the bytes that may follow a state, grouped by the next state.
std::map<int, std::string> choices_of(text::GrammarMachine& machine, int state) {
  std::map<int, std::string> choices;
  for (int byte = 0; byte < 256; ++byte) {
    const int after = machine.next(state, static_cast<uint8_t>(byte));
    if (after != text::GrammarMachine::kDead) choices[after] += static_cast<char>(byte);
  }
  return choices;
}

/// Returns the text of a random walk from the start to the end; "" if it becomes too long. It chooses the next state
/// before the byte, so that a name of the schema is as likely as all other names together.
std::string random_text(text::GrammarMachine& machine, std::mt19937_64& random) {
  std::string text;
  for (int state = machine.start(); text.size() < kMaxBytes;) {
    const std::map<int, std::string> choices = choices_of(machine, state);
    if (machine.may_end(state) && (choices.empty() || random() % 4 != 0)) return text;
    std::vector<std::string> ways;
    for (const auto& [after, bytes] : choices) {
      const bool is_space = bytes.find_first_of(" \n") != std::string::npos && bytes.size() <= 2;
      if (!is_space || choices.size() == 1 || random() % 16 == 0) ways.push_back(bytes);
    }
    if (ways.empty()) ways.push_back(choices.begin()->second);
    if (text.size() > kLong)
      for (const char close : {'"', ']', '}'})
        for (const std::string& bytes : std::vector(ways))
          if (bytes.find(close) != std::string::npos) ways = {std::string(1, close)};
    const std::string& bytes = ways[random() % ways.size()];
    text += bytes[random() % bytes.size()];
    state = machine.next(state, static_cast<uint8_t>(text.back()));
  }
  return "";
}

nlohmann::json texts_of(const std::string& schema, int count, std::mt19937_64& random) {
  try {
    text::JsonGrammar made = text::json_grammar(schema);
    text::GrammarMachine machine(std::move(made.grammar), made.rule);
    nlohmann::json texts = nlohmann::json::array();
    for (int i = 0; i < count; ++i)
      if (std::string text = random_text(machine, random); !text.empty()) texts.push_back(std::move(text));
    return {{"texts", std::move(texts)}};
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main(int argc, char** argv) try {
  require(argc == 3, "probe", "two arguments are expected: got ", argc - 1);
  std::mt19937_64 random(std::stoull(argv[2]));
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  nlohmann::json made = nlohmann::json::array();
  for (const nlohmann::json& schema : nlohmann::json::parse(input))
    made.push_back(texts_of(schema.get<std::string>(), std::stoi(argv[1]), random));
  std::printf("%s\n", made.dump().c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
