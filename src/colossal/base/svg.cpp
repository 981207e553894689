#include "colossal/base/svg.h"

#include "colossal/base/html.h"
#include "colossal/base/number.h"

namespace colossal {
namespace {

std::string text_of_number(const SvgNumber& number, int decimals) {
  if (const double* fraction = std::get_if<double>(&number)) return fixed_text(*fraction, decimals);
  return std::to_string(std::get<int64_t>(number));
}

std::string start_of(const char* name, std::initializer_list<SvgAttribute> attributes, int decimals) {
  std::string out = std::string("<") + name;
  for (const SvgAttribute& attribute : attributes) {
    const auto* text = std::get_if<std::string>(&attribute.value);
    out += std::string(" ") + attribute.name + "='" +
           (text ? html_text(*text) : text_of_number(std::get<SvgNumber>(attribute.value), decimals)) + "'";
  }
  return out;
}

}  // namespace

std::string SvgWriter::element(const char* name, std::initializer_list<SvgAttribute> attributes) const {
  return start_of(name, attributes, decimals_) + "/>";
}

std::string SvgWriter::element(const char* name, std::initializer_list<SvgAttribute> attributes,
                               const std::string& content) const {
  return start_of(name, attributes, decimals_) + ">" + content + "</" + name + ">";
}

std::string SvgWriter::rect(const std::string& style, SvgNumber x, SvgNumber y, SvgNumber width,
                            SvgNumber height) const {
  return element("rect", {{"class", style}, {"x", x}, {"y", y}, {"width", width}, {"height", height}});
}

std::string SvgWriter::rect(const std::string& style, SvgNumber x, SvgNumber y, SvgNumber width, SvgNumber height,
                            const std::string& content) const {
  return element("rect", {{"class", style}, {"x", x}, {"y", y}, {"width", width}, {"height", height}}, content);
}

std::string SvgWriter::circle(const std::string& style, SvgNumber radius, SvgNumber x, SvgNumber y) const {
  return element("circle", {{"class", style}, {"r", radius}, {"cx", x}, {"cy", y}});
}

std::string SvgWriter::line(const std::string& style, SvgNumber x1, SvgNumber y1, SvgNumber x2, SvgNumber y2) const {
  return element("line", {{"class", style}, {"x1", x1}, {"y1", y1}, {"x2", x2}, {"y2", y2}});
}

std::string SvgWriter::line_across(const std::string& style, SvgNumber x1, SvgNumber x2, SvgNumber y) const {
  return element("line", {{"class", style}, {"x1", x1}, {"x2", x2}, {"y1", y}, {"y2", y}});
}

std::string SvgWriter::path(const std::string& style, const std::string& commands) const {
  return element("path", {{"class", style}, {"d", commands}});
}

std::string SvgWriter::point(char command, SvgNumber x, SvgNumber y) const {
  return command + number(x) + " " + number(y);
}

std::string SvgWriter::number(SvgNumber value) const { return text_of_number(value, decimals_); }

std::string SvgWriter::text(const std::string& style, SvgNumber x, SvgNumber y, std::string_view text) const {
  return element("text", {{"class", style}, {"x", x}, {"y", y}}, html_text(text));
}

std::string SvgWriter::title(std::string_view text) const { return element("title", {}, html_text(text)); }

std::string SvgWriter::moved(SvgNumber x, SvgNumber y, const std::string& content) const {
  return element("g", {{"transform", "translate(" + number(x) + " " + number(y) + ")"}}, content);
}

std::string SvgWriter::document(SvgNumber width, SvgNumber height, const std::string& style_sheet,
                                const std::string& content) const {
  const std::string back = element("rect", {{"width", "100%"}, {"height", "100%"}, {"fill", "#fff"}});
  return element("svg",
                 {{"xmlns", "http://www.w3.org/2000/svg"},
                  {"viewBox", "0 0 " + number(width) + " " + number(height)},
                  {"width", width},
                  {"height", height}},
                 element("style", {}, style_sheet) + back + content) +
         "\n";
}

}  // namespace colossal
