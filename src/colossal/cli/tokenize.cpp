#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/standard_output.h"
#include "colossal/cli/text_lines.h"
#include "colossal/data/chats/chat_encoder.h"
#include "colossal/data/chats/chat_line.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizer.h"

namespace colossal::cli {
namespace {

using nlohmann::json;
using Ids = std::vector<int64_t>;

constexpr size_t kLinesAtOnce = 4096;  // maximum number of lines in memory

struct TokenizeRequest {
  std::string tokenizer, file;
  bool pieces = false, special = false, decode = false, whole = false, as_json = false, count = false;
  bool chat = false, rendered = false, generation_prompt = false, labels = false;
  std::string template_file, answers = "all";
  std::optional<text::ChatTemplate> chat_template;  ///< set with `chat`; with `labels` only if there is one
  int threads = 1;
};

/// Returns the text to which the template renders the chat of a line.
std::string chat_of(const TokenizeRequest& request, const NumberedLine& line) {
  try {
    text::Chat chat = text::parse_chat(line.text);
    chat.add_generation_prompt |= request.generation_prompt;
    return request.chat_template->render(chat).text;
  } catch (const Error& error) {
    throw Error("tokenize", concat("line ", line.number, ": ", error.message()));
  }
}

/// Returns the ids and labels of a line, in any form of records of chats: one object, or two of a pair.
json labels_of(const data::ChatEncoder& encoder, const NumberedLine& line) {
  const std::string place = concat("line ", line.number);
  try {
    const data::ChatLine chat = data::chat_line_of(parse_ordered_json(line.text, place, "data"), place);
    json texts = json::array();
    for (const data::LabelledTokens& tokens : encoder.encode(chat).texts)
      texts.push_back({{"ids", tokens.ids}, {"labels", tokens.labels}});
    if (chat.kind == data::ChatKind::Ranking) return json{{"answers", texts}};
    return texts.size() == 1 ? texts[0] : json{{"chosen", texts[0]}, {"rejected", texts[1]}};
  } catch (const Error& error) {
    throw Error("tokenize", error.message());
  }
}

Ids ids_of_line(const NumberedLine& line) {
  const json value = parse_line(line, "a JSON list of token ids");
  Ids ids;
  if (!value.is_array()) refuse_line(line, "a JSON list of token ids");
  for (const json& id : value) {
    if (!id.is_number_integer()) refuse_line(line, "a JSON list of token ids");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::string shown(const TokenizeRequest& request, const text::Tokenizer& tokenizer, const Ids& ids) {
  if (!request.pieces) return json(ids).dump();
  json pieces = json::array();
  for (const int64_t id : ids) pieces.push_back(text::valid_utf8(tokenizer.spelling(id)));
  return pieces.dump();
}

/// Returns one list of ids per line.
std::vector<Ids> encoded(const TokenizeRequest& request, const text::Tokenizer& tokenizer,
                         const std::vector<NumberedLine>& lines) {
  std::vector<Ids> all(lines.size());
  text::for_each_index(lines.size(), request.threads, [&](size_t i) {
    const bool is_made = request.as_json || request.chat;
    const std::string text = request.as_json ? text_of_line(lines[i]) : request.chat ? chat_of(request, lines[i]) : "";
    const std::string_view view = is_made ? text : lines[i].text;
    all[i] = request.special ? tokenizer.encode_whole(view).ids : tokenizer.encode(view);
  });
  return all;
}

/// Writes `of(line)` for each line, which is computed on several threads.
template <class Of>
void put_each(const TokenizeRequest& request, const std::vector<NumberedLine>& lines, const Of& of) {
  std::vector<std::string> texts(lines.size());
  text::for_each_index(lines.size(), request.threads, [&](size_t i) { texts[i] = json(of(lines[i])).dump(); });
  for (const std::string& text : texts) put_line(text);
}

/// Writes the requested output for each line, and adds up the tokens.
void answer(const TokenizeRequest& request, const std::shared_ptr<const text::Tokenizer>& shared,
            const std::vector<NumberedLine>& lines, size_t& tokens) {
  const text::Tokenizer& tokenizer = *shared;
  if (request.decode) {
    return put_each(request, lines, [&](const NumberedLine& line) {
      return text::valid_utf8(tokenizer.decode(ids_of_line(line), request.special));
    });
  }
  if (request.rendered)
    return put_each(request, lines, [&](const NumberedLine& line) { return chat_of(request, line); });
  if (request.labels) {
    const data::ChatEncoder encoder(shared, request.chat_template,
                                    {.answers = data::answers_of(request.answers, "--answers"),
                                     .end_ids = text::end_ids(request.tokenizer, tokenizer)});
    return put_each(request, lines, [&](const NumberedLine& line) { return labels_of(encoder, line); });
  }
  for (const Ids& ids : encoded(request, tokenizer, lines)) {
    tokens += ids.size();
    if (!request.count) put_line(shown(request, tokenizer, ids));
  }
}

/// Returns the number of tokens.
size_t tokenize_stream(const TokenizeRequest& request, const std::shared_ptr<const text::Tokenizer>& tokenizer,
                       std::istream& in) {
  size_t tokens = 0;
  std::vector<NumberedLine> lines;
  int64_t number = 0;
  if (request.whole)
    lines.push_back({1, std::string{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()}});
  for (std::string line; std::getline(in, line);) {
    lines.push_back({++number, std::move(line)});
    if (lines.size() < kLinesAtOnce) continue;
    answer(request, tokenizer, lines, tokens);
    lines.clear();
  }
  require(!in.bad(), "tokenize", "cannot read ", request.file.empty() ? "standard input" : request.file, " to its end");
  answer(request, tokenizer, lines, tokens);
  return tokens;
}

/// CLI11's excludes() is not used, because help would list the excluded flags in the order of their addresses.
void check_flags(const TokenizeRequest& r) {
  const auto apart = [](bool one, const char* its_name, std::vector<std::pair<bool, const char*>> others) {
    for (const auto& [other, other_name] : others)
      if (one && other)
        throw UsageError(concat("colossal tokenize: ", its_name, " and ", other_name, " exclude each other"));
  };
  apart(
      r.decode, "--decode",
      {{r.whole, "--whole"}, {r.as_json, "--json"}, {r.chat, "--chat"}, {r.count, "--count"}, {r.pieces, "--pieces"}});
  apart(r.whole, "--whole", {{r.as_json, "--json"}});
  apart(r.chat, "--chat", {{r.as_json, "--json"}});
  apart(r.count, "--count", {{r.pieces, "--pieces"}, {r.rendered, "--rendered"}});
  apart(r.rendered, "--rendered", {{r.pieces, "--pieces"}, {r.special, "--special"}});  // no tokens are computed
  apart(r.labels, "--labels",
        {{r.pieces, "--pieces"},
         {r.special, "--special"},
         {r.count, "--count"},
         {r.rendered, "--rendered"},
         {r.generation_prompt, "--generation-prompt"}});
}

}  // namespace

int tokenize(const Arguments& arguments) {
  CLI::App app(
      "Converts text to token ids, one JSON list per line, and back. Reads one text per line from FILE or standard "
      "input.",
      "colossal tokenize");
  TokenizeRequest r;
  app.add_option("--tokenizer", r.tokenizer,
                 "`bytes`, a Hugging Face folder, tokenizer.json, vocab.txt, SentencePiece .model, tiktoken rank file "
                 "or GGUF file")
      ->required();
  app.add_option("file", r.file, "file to read; default: standard input");
  app.add_flag("--pieces", r.pieces, "print tokens as the vocabulary spells them instead of ids");
  app.add_flag("--special", r.special,
               "include the special tokens that the tokenizer puts around a text; with --decode print them");
  app.add_flag("--decode", r.decode, "convert lists of ids to texts, printed as JSON strings");
  app.add_flag("--whole", r.whole, "read the whole input as one text");
  app.add_flag("--json", r.as_json, "read each line as a JSON string, or an object with a string in \"text\"");
  CLI::Option* chat = app.add_flag("--chat", r.chat,
                                   "read each line as a JSON object with \"messages\", or a list of messages, and "
                                   "apply the chat template of the tokenizer's folder or GGUF file");
  app.add_flag("--rendered", r.rendered, "print chats as text, each a JSON string, instead of ids")->needs(chat);
  app.add_flag("--generation-prompt", r.generation_prompt,
               "append the template's opening of the assistant's answer to chats")
      ->needs(chat);
  CLI::Option* labels =
      app.add_flag(
             "--labels", r.labels,
             "print {\"ids\", \"labels\"} of each chat, where a label is the id of a token that training counts, or "
             "-100; reads all forms of chats, prompts and pairs that training reads")
          ->needs(chat);
  app.add_option("--chat-template", r.template_file, "Jinja file to use instead of the folder's template")->needs(chat);
  app.add_option("--answers", r.answers, "answers that count: all, last, or everything (prompts too)")
      ->needs(labels)
      ->capture_default_str()
      ->check(CLI::IsMember({"all", "last", "everything"}));
  app.add_flag("--count", r.count, "print only the number of tokens");
  app.add_option("--threads", r.threads, "number of threads that encode or decode")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  parse(app, arguments);
  check_flags(r);
  if (r.chat) r.chat_template = text::ChatTemplate::find(r.template_file, {r.tokenizer});
  require(r.chat_template || !r.chat || r.labels,  // plain texts have labels without a template
          "tokenize", r.tokenizer, " has no chat template; name a Jinja file with --chat-template");
  const std::shared_ptr<const text::Tokenizer> tokenizer = text::make_tokenizer(r.tokenizer);
  std::ifstream file;
  if (!r.file.empty()) {
    file.open(r.file, std::ios::binary);
    require(file.good() && !std::filesystem::is_directory(r.file), "tokenize", "cannot read ", r.file);
  }
  const size_t tokens = tokenize_stream(r, tokenizer, r.file.empty() ? std::cin : file);
  if (r.count) put_line(std::to_string(tokens));
  return 0;
}

}  // namespace colossal::cli
