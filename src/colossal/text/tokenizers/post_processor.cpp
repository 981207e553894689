#include "colossal/text/tokenizers/post_processor.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {
namespace {

using nlohmann::json;

int64_t checked_id(const json& id, const char* what) {
  require(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < Vocabulary::kMaxId, "tokenizer",
          "the id of the post_processor's ", what, " must be in [0, 2^24): got ", id.dump());
  return id.get<int64_t>();
}

}  // namespace

PostProcessor::PostProcessor(const json& section) {
  if (!section.is_null()) add(section);
}

void PostProcessor::add(const json& section) {
  const std::string type = type_of(section);
  if (type == "ByteLevel") return;
  if (type == "Sequence") {
    for (const json& step : section.at("processors")) add(step);
    return;
  }
  require(!adds_, "tokenizer", "a Sequence of two post_processors that add tokens is not supported: got ", type);
  adds_ = true;
  if (type == "TemplateProcessing") {
    add_template(section);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    add_pair(section, type == "RobertaProcessing");
  } else {
    throw Error("tokenizer", concat("the post_processor ", type,
                                    " is not supported, only TemplateProcessing, BertProcessing, RobertaProcessing, "
                                    "ByteLevel, Sequence"));
  }
}

void PostProcessor::add_pair(const json& section, bool roberta) {
  const std::vector<int64_t> begin{checked_id(section.at("cls").at(1), "cls")};
  const std::vector<int64_t> end{checked_id(section.at("sep").at(1), "sep")};
  single_ = {{-1, 0, begin}, {0, 0, {}}, {-1, 0, end}};
  pair_ = single_;
  if (roberta) pair_.push_back({-1, 0, end});
  pair_.push_back({1, roberta ? 0 : 1, {}});
  pair_.push_back({-1, roberta ? 0 : 1, end});
}

void PostProcessor::add_template(const json& section) {
  const json special = section.value("special_tokens", json::object());
  single_ = parse(section.at("single"), special, 1);
  const json pair = section.value("pair", json::array());
  if (!pair.empty()) pair_ = parse(pair, special, 2);
}

PostProcessor::Template PostProcessor::parse(const json& list, const json& special, int sequences) {
  Template parts;
  std::vector<int> seen(2);
  require(list.is_array(), "tokenizer", "a template of the post_processor must be a list: got ", list.dump());
  for (const json& item : list) {
    if (item.contains("SpecialToken")) {
      const json& token = item["SpecialToken"];
      Part part{-1, value_or<int64_t>(token, "type_id", 0), {}};
      for (const json& id : special.at(token.at("id").get<std::string>()).at("ids"))
        part.ids.push_back(checked_id(id, "special token"));
      parts.push_back(std::move(part));
      continue;
    }
    const json& sequence = item.at("Sequence");
    const auto name = sequence.at("id").get<std::string>();
    require(name == "A" || (name == "B" && sequences == 2), "tokenizer", "the post_processor's template names a text ",
            name);
    const int which = name == "B";
    ++seen[which];
    parts.push_back({which, value_or<int64_t>(sequence, "type_id", 0), {}});
  }
  for (int i = 0; i < sequences; ++i)
    require(seen[i] == 1, "tokenizer", "the post_processor's template must name each text once");
  return parts;
}

Encoding PostProcessor::filled(const Template& pattern, const std::vector<int64_t>* const texts[2]) {
  Encoding out;
  for (const Part& part : pattern) {
    const std::vector<int64_t>& ids = part.sequence < 0 ? part.ids : *texts[part.sequence];
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.types.insert(out.types.end(), ids.size(), part.type);
  }
  return out;
}

Encoding PostProcessor::operator()(const std::vector<int64_t>& text) const {
  const std::vector<int64_t>* const texts[2] = {&text, nullptr};
  return filled(single_, texts);
}

Encoding PostProcessor::operator()(const std::vector<int64_t>& first, const std::vector<int64_t>& second) const {
  const std::vector<int64_t>* const texts[2] = {&first, &second};
  return filled(pair_, texts);
}

std::vector<int64_t> PostProcessor::before() const {
  std::vector<int64_t> ids;
  for (const Part& part : single_) {
    if (part.sequence >= 0) break;
    ids.insert(ids.end(), part.ids.begin(), part.ids.end());
  }
  return ids;
}

}  // namespace colossal::text
