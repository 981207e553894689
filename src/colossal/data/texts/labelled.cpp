#include "colossal/data/texts/labelled.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/seed.h"
#include "colossal/base/text_start.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/record_lines.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/data/streams/unpacked_file.h"
#include "colossal/data/texts/samples.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

constexpr int64_t kMaxTextFileBytes = int64_t{1} << 30;
constexpr int64_t kMaxClasses = 1 << 24;
constexpr std::string_view kUnnamed = "LABEL_";  // transformers calls class 3 LABEL_3 in a model without names
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

struct LabelledLine {
  std::string label, text;
};

LabelledLine labelled_record(const std::string& line, const std::string& path, int64_t number,
                             const LabelledOptions& options) {
  const auto record = parse_json_line(line, path, number);
  const auto label = record.find(options.label_column);
  require(label != record.end(), "data", path, ":", number, ": no column ", printable(options.label_column),
          "; set data.label_column to the column that holds the class");
  require(label->is_string() || label->is_number_integer(), "data", path, ":", number, ": ",
          printable(options.label_column), " must be a number or a name: got ", label->type_name());
  return {label->is_string() ? label->get<std::string>() : label->dump(),
          text_of_columns(record, options.text_columns, path, number)};
}

LabelledLine parse_tab_line(const std::string& line, const std::string& where) {
  const size_t tab = line.find('\t');
  require(tab != std::string::npos && tab > 0, "data", where, ": a line must be `label<tab>text`: got ",
          printable(line.substr(0, 40)));
  return {line.substr(0, tab), line.substr(tab + 1)};
}

/// Returns the i of `LABEL_i`, or nothing for any other label.
std::optional<int64_t> number_of_unnamed(std::string_view label) {
  if (!label.starts_with(kUnnamed)) return std::nullopt;
  const std::string_view digits = label.substr(kUnnamed.size());
  int64_t number = -1;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = parsed.ec == std::errc() && std::to_string(number) == digits;
  return is_number && number >= 0 && number < kMaxClasses ? std::optional(number) : std::nullopt;
}

/// Returns true if the label is an integer of any size, even one that is no valid label.
bool is_number(const std::string& label) {
  int64_t value = 0;
  return std::from_chars(label.data(), label.data() + label.size(), value).ptr == label.data() + label.size();
}

/// Returns true if the labels are numbers. A single name among numbers (the header of a table) is an error, because it
/// would turn all labels into names, which get other numbers, in alphabetical order.
bool are_numbers(const std::vector<std::string>& labels, const std::vector<std::string>& places) {
  const auto first_name = std::find_if_not(labels.begin(), labels.end(), is_number);
  const auto first_number = std::find_if(labels.begin(), labels.end(), is_number);
  if (first_number == labels.end()) return false;
  const auto place = [&](auto label) { return places[label - labels.begin()]; };
  if (first_name != labels.end())
    throw Error("data", concat(place(first_name), ": labels must be all numbers or all names: got ",
                               printable(*first_name), ", and ", place(first_number), " has ", *first_number,
                               "; remove the line if it is a header, or write every label as a name"));
  for (size_t i = 0; i < labels.size(); ++i) {
    int64_t value = -1;
    const auto parsed = std::from_chars(labels[i].data(), labels[i].data() + labels[i].size(), value);
    require(parsed.ec == std::errc() && value >= 0 && value < kMaxClasses, "data", places[i],
            ": a label that is a number must be in [0, ", kMaxClasses, "): got ", printable(labels[i]),
            "; remove the texts that have no label");
  }
  return true;
}

/// Sets the labels, the classes and, if labels are names, the names of the texts in `read`.
void number_classes(const std::vector<std::string>& labels, bool are_numbers, LabelledTexts& read) {
  read.are_unnamed =
      std::all_of(labels.begin(), labels.end(), [](const auto& label) { return number_of_unnamed(label).has_value(); });
  std::map<std::string, int64_t> names;
  if (!are_numbers && !read.are_unnamed) {
    for (const std::string& label : labels) names[label] = 0;
    for (auto& [name, index] : names) index = read.classes++, read.names.push_back(name);
  }
  for (const std::string& label : labels) {
    read.labels.push_back(read.are_unnamed ? *number_of_unnamed(label)
                          : are_numbers    ? std::stoll(label)
                                           : names.at(label));
    read.classes = std::max(read.classes, read.labels.back() + 1);
  }
}

}  // namespace

LabelledTexts read_labelled_texts(const std::string& path, const LabelledOptions& options) {
  const bool is_json = is_record_file(path);
  if (!is_json && !is_packed(path)) require_text_file(path, "data");
  std::vector<std::string> labels, places;
  LabelledTexts read;
  std::vector<std::string> columns = options.text_columns;
  columns.push_back(options.label_column);
  const auto lines = RecordLines::open(path, options.max_line_bytes, {}, columns);
  int64_t bytes = 0;
  Checksum sum;
  SkippedRecords skipped_records;
  const auto next_line = [&](std::string& line) {
    try {
      return lines->next(line);
    } catch (const Error& error) {
      const std::string what =
          concat(path, ":", lines->position().lines + 1, ": the rest of the file cannot be read: ", error.message());
      if (options.on_error == OnError::Refuse) throw Error("data", what);
      skipped_records.add(what);
      return false;
    }
  };
  for (std::string line; next_line(line);) {
    const int64_t number = lines->position().lines;
    bytes += static_cast<int64_t>(line.size()) + 1;
    require(bytes <= kMaxTextFileBytes, "data", path, " has more than ", kMaxTextFileBytes, " bytes unpacked");
    sum.update(line.data(), line.size());
    sum.update("\n", 1);
    if (number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (is_json && is_blank(line))) continue;
    const std::string where = concat(path, ":", number);
    try {
      require(!lines->is_cut(), "data", where, ": a line must have at most ", options.max_line_bytes,
              " bytes; raise data.max_line_bytes");
      LabelledLine parsed = is_json ? labelled_record(line, path, number, options) : parse_tab_line(line, where);
      require(text::is_utf8(parsed.label), "data", where, ": a label must be UTF-8: got ", printable(parsed.label),
              "; convert the file, for instance with iconv -f LATIN1 -t UTF-8");
      labels.push_back(std::move(parsed.label));
      places.push_back(where);
      read.texts.push_back(std::move(parsed.text));
    } catch (const Error& error) {
      if (options.on_error == OnError::Refuse) throw;
      skipped_records.add(error.message());
    }
  }
  require(!labels.empty(), "data", path, " holds no texts",
          skipped_records.count() > 0 ? concat(": ", skipped_records.count(), " lines were skipped") : "");
  number_classes(labels, are_numbers(labels, places), read);
  read.skipped_records = skipped_records.take_notices();
  read.fingerprint = concat(read.texts.size(), " texts, ", sum.hex());
  return read;
}

void LabelledTexts::number_as(const std::vector<std::string>& order) {
  if (names.empty() && !are_unnamed) return;
  std::map<std::string, int64_t> places;
  for (size_t i = 0; i < order.size(); ++i) places.emplace(order[i], i);
  const auto place_of = [&](const std::string& name) {
    const auto found = places.find(name);
    require(found != places.end(), "data", "the classes of the texts must be those of the model: got ", printable(name),
            "; set model.class_names, or [] to take the names of the texts");
    return found->second;
  };
  std::vector<int64_t> numbers;
  for (const std::string& name : names) numbers.push_back(place_of(name));
  for (int64_t& label : labels)
    label = are_unnamed ? place_of(concat(kUnnamed, label)) : numbers[static_cast<size_t>(label)];
  are_unnamed = false;
  names = order;
  classes = static_cast<int64_t>(order.size());
}

std::pair<LabelledTexts, LabelledTexts> LabelledTexts::split(double held_out) const {
  LabelledTexts parts[2];
  for (LabelledTexts& part : parts) {
    part.classes = classes;
    part.names = names;
    part.are_unnamed = are_unnamed;
    part.fingerprint = fingerprint;
  }
  const uint64_t seed = derive_seed(0, "held out");
  for (size_t i = 0; i < texts.size(); ++i) {
    LabelledTexts& part = parts[static_cast<double>(derive_seed(seed, i) >> 11) * 0x1p-53 < held_out ? 1 : 0];
    part.texts.push_back(texts[i]);
    part.labels.push_back(labels[i]);
  }
  return {std::move(parts[0]), std::move(parts[1])};
}

LabelledSamples::LabelledSamples(const LabelledTexts& texts, const text::Tokenizer& tokenizer, int64_t sequence)
    : sequence_(sequence),
      begin_id_(tokenizer.begin_id() >= 0 ? tokenizer.begin_id() : tokenizer.end_id()),
      end_id_(tokenizer.end_id()),
      labels_(texts.labels),
      names_(texts.names),
      fingerprint_(texts.fingerprint) {
  require(!texts.texts.empty(), "data", "there must be labelled texts; change data.held_out or name another file");
  require(sequence >= 3, "data", "the sequence must hold a begin token, a text and an end token: got ", sequence);
  require(end_id_ >= 0, "data", "labelled texts need a tokenizer with an end token");
  for (const std::string& text : texts.texts) {
    std::vector<int64_t> ids = tokenizer.encode(text);
    ids.resize(std::min<size_t>(ids.size(), sequence - 2));
    tokens_.emplace_back(ids.begin(), ids.end());
  }
  Checksum sum;
  for (const std::vector<int32_t>& text : tokens_) {
    const auto length = static_cast<int64_t>(text.size());
    sum.update(&length, sizeof length);
    sum.update(text.data(), text.size() * sizeof(int32_t));
  }
  tokens_fingerprint_ = concat(begin_id_, " ", end_id_, " ", sum.hex());
}

tensor::Batch LabelledSamples::make(int64_t rows) const {
  const auto zeros = [&](int64_t columns) { return at::zeros({rows, columns}, at::kLong); };
  return text_batch(zeros(sequence_), zeros(1), zeros(sequence_), zeros(sequence_), tensor::Dim::Other);
}

void LabelledSamples::fill(int64_t index, uint64_t /*seed*/, tensor::Batch& batch, int64_t row) const {
  int64_t *tokens = row_of(batch, "ids", row), *positions = row_of(batch, "positions", row);
  int64_t* documents = row_of(batch, "documents", row);
  const std::vector<int32_t>& text = tokens_[index];
  const auto length = static_cast<int64_t>(text.size()) + 2;
  for (int64_t i = 0; i < sequence_; ++i) {
    tokens[i] = i == 0 ? begin_id_ : i <= length - 2 ? text[i - 1] : end_id_;
    positions[i] = i < length ? i : i - length;
    documents[i] = i < length ? 0 : 1;
  }
  *row_of(batch, "labels", row) = labels_[index];
}

nlohmann::json LabelledSamples::traits() const {
  return {{"texts", fingerprint_},
          {"tokens", tokens_fingerprint_},
          {"classes", names_},
          {"sequence", sequence_},
          {"samples", count()}};
}

}  // namespace colossal::data
