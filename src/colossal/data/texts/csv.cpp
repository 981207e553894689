#include "colossal/data/texts/csv.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::data {

CsvReader::CsvReader(std::string_view text, std::string name) : rest_(text), name_(std::move(name)) {
  constexpr std::string_view kByteOrder = "\xef\xbb\xbf";
  if (rest_.starts_with(kByteOrder)) rest_.remove_prefix(kByteOrder.size());
}

bool CsvReader::takes_end_of_line() {
  const size_t length = rest_.starts_with("\r\n") ? 2 : rest_.starts_with("\n") ? 1 : 0;
  rest_.remove_prefix(length);
  next_line_ += length > 0;
  return length > 0;
}

void CsvReader::refuse_record(const char* why) {
  const size_t feed = rest_.find('\n');
  rest_.remove_prefix(feed == std::string_view::npos ? rest_.size() : feed + 1);
  ++next_line_;
  throw Error("data", concat(name_, ":", line_, ": ", why, "; put fields with commas, quotes or ends of lines into ",
                             "double quotes, and double each quote in them"));
}

/// Takes a field whose opening quote was taken.
std::string CsvReader::quoted_field() {
  std::string field;
  const std::string_view whole = rest_;
  for (;;) {
    const size_t quote = rest_.find('"');
    if (quote == std::string_view::npos) {
      rest_ = whole;  // continues after the line with the quote, because the rest is not known to be a field
      refuse_record("the quote that ends a field is missing");
    }
    field += rest_.substr(0, quote);
    rest_.remove_prefix(quote + 1);
    if (!rest_.starts_with('"')) break;
    field += '"';
    rest_.remove_prefix(1);
  }
  next_line_ += std::count(field.begin(), field.end(), '\n');
  return field;
}

bool CsvReader::next(std::vector<std::string>& fields) {
  fields.clear();
  while (takes_end_of_line()) continue;
  if (rest_.empty()) return false;
  line_ = next_line_;
  for (;;) {
    if (rest_.starts_with('"')) {
      rest_.remove_prefix(1);
      fields.push_back(quoted_field());
    } else {
      const size_t end = std::min(rest_.find_first_of(",\n"), rest_.size());
      const size_t length = end - (end > 0 && end < rest_.size() && rest_[end] == '\n' && rest_[end - 1] == '\r');
      if (rest_.substr(0, length).find('"') != std::string_view::npos)
        refuse_record("a quote is inside a field that has none around it");
      fields.emplace_back(rest_.substr(0, length));
      rest_.remove_prefix(length);
    }
    if (rest_.empty() || takes_end_of_line()) return true;
    if (!rest_.starts_with(',')) refuse_record("text follows the quote that ends a field");
    rest_.remove_prefix(1);
  }
}

}  // namespace colossal::data
