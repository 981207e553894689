// A writer of SVG: elements as text, for pictures in files and on pages.
//
//   const SvgWriter svg;
//   const std::string bar = svg.rect("bar", 10, 4, 62.25, 12, svg.title("a < b"));
//   write_file("bars.svg", svg.document(200, 40, ".bar{fill:#3b6fb6}", bar + svg.text("name", 10, 30, "a < b")));
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace colossal {

/// A number of a drawing: an integer is written as it is, a double with the decimals of the writer.
using SvgNumber = std::variant<int64_t, double>;

/// An attribute of an element. Text is escaped.
struct SvgAttribute {
  const char* name;
  std::variant<SvgNumber, std::string> value;
};

/// A writer whose members return elements as text. `style` is the value of `class`. `content` is markup: elements, one
/// after another. Doubles must be finite. Members may be called from several threads.
class SvgWriter {
 public:
  constexpr explicit SvgWriter(int decimals = 1) : decimals_(decimals) {}

  /// Returns an element that has the attributes in their order, and ends in itself or after `content`.
  std::string element(const char* name, std::initializer_list<SvgAttribute> attributes) const;
  std::string element(const char* name, std::initializer_list<SvgAttribute> attributes,
                      const std::string& content) const;

  std::string rect(const std::string& style, SvgNumber x, SvgNumber y, SvgNumber width, SvgNumber height) const;
  std::string rect(const std::string& style, SvgNumber x, SvgNumber y, SvgNumber width, SvgNumber height,
                   const std::string& content) const;
  std::string circle(const std::string& style, SvgNumber radius, SvgNumber x, SvgNumber y) const;
  std::string line(const std::string& style, SvgNumber x1, SvgNumber y1, SvgNumber x2, SvgNumber y2) const;
  /// Returns a horizontal line, whose attributes name both x before y.
  std::string line_across(const std::string& style, SvgNumber x1, SvgNumber x2, SvgNumber y) const;
  /// Returns the path of point()s and other commands.
  std::string path(const std::string& style, const std::string& commands) const;
  /// Returns one command of a path: "M12.0 3.5".
  std::string point(char command, SvgNumber x, SvgNumber y) const;
  /// Returns a number by itself, for other commands: "12.0".
  std::string number(SvgNumber value) const;

  /// Returns `text`, escaped. It begins at x, unless the style sheet anchors it otherwise; y is its base line.
  std::string text(const std::string& style, SvgNumber x, SvgNumber y, std::string_view text) const;
  /// Returns the tooltip of the element that has it as content. `text` is escaped.
  std::string title(std::string_view text) const;
  /// Returns a group that is moved by x and y.
  std::string moved(SvgNumber x, SvgNumber y, const std::string& content) const;
  /// Returns a whole file: a white picture with a style sheet, which must not have "<" or "&".
  std::string document(SvgNumber width, SvgNumber height, const std::string& style_sheet,
                       const std::string& content) const;

 private:
  int decimals_;
};

}  // namespace colossal
