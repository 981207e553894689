#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/schedule/draw.h"

namespace colossal::schedule {
namespace {

// Sizes of the drawing, in its own units.
constexpr double kWidth = 1200, kLeft = 64, kRight = 16, kTop = 34, kHead = 26, kRow = 20, kGap = 18;
constexpr double kLetterWidth = 6;  // width of a digit in the boxes
constexpr int kShades = 4;          // chunks beyond them reuse the shades

constexpr const char* kStyle =
    "text{font:11px "
    "system-ui,sans-serif;fill:#333}.title{font-size:13px;font-weight:600}.n{font-size:10px;fill:#fff;text-anchor:"
    "middle}"
    ".rank{text-anchor:end}.back{fill:#f1f1ee}.f{fill:#3b6fb6}.b{fill:#c8743a}.w{fill:#5d9a5b}.s1{fill-opacity:.72}.s2{"
    "fill-opacity:.86}"
    ".s3{fill-opacity:.6}.o{fill:#8a8a8a}.m{stroke:#222;stroke-opacity:.25;stroke-width:.7}";

std::string xml(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : std::string(1, c);
  return out;
}

std::string number(double value, const char* format = "%.2f") {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string text(const char* style, double x, double y, const std::string& content) {
  return concat("<text class='", style, "' x='", number(x), "' y='", number(y), "'>", xml(content), "</text>");
}

const char* style_of(Action action) {
  switch (action) {
    case Action::Forward:
      return "f";
    case Action::Backward:
    case Action::BackwardInput:
      return "b";
    case Action::BackwardWeight:
      return "w";
    default:
      return "o";
  }
}

/// One timeline whose first row begins at `top`.
class Picture {
 public:
  Picture(const Timeline& timeline, double top, double scale) : timeline_(timeline), top_(top), scale_(scale) {
    origin_ = std::numeric_limits<double>::infinity();
    for (const Event& event : timeline.events)
      if (is_compute(event.step.action)) origin_ = std::min(origin_, event.begin);
  }

  std::string draw() const {
    std::string boxes, messages;
    for (int rank = 0; rank < timeline_.ranks; ++rank) {
      boxes += concat("<rect class='back' x='", number(kLeft), "' y='", number(y(rank)), "' width='",
                      number(timeline_.makespan * scale_), "' height='", number(kRow - 2), "'/>",
                      text("rank", kLeft - 8, y(rank) + 13, concat("rank ", rank)));
    }
    for (const Event& event : timeline_.events) {
      if (is_send(event.step.action))
        messages += message(event);
      else if (!is_receive(event.step.action) && event.end > event.begin)
        boxes += box(event);
    }
    return boxes + messages;
  }

 private:
  double x(double time) const { return kLeft + (time - origin_) * scale_; }
  double y(int rank) const { return top_ + rank * kRow; }

  std::string box(const Event& event) const {
    const double width = (event.end - event.begin) * scale_;
    const std::string name = to_string(event.step, timeline_.chunks);
    std::string shade = style_of(event.step.action);
    if (event.step.chunk % kShades > 0) shade += concat(" s", event.step.chunk % kShades);
    std::string out = concat("<g><title>", name, " on rank ", event.rank, ": ", number(event.begin - origin_, "%.4g"),
                             " to ", number(event.end - origin_, "%.4g"), "</title><rect class='", shade, "' x='",
                             number(x(event.begin)), "' y='", number(y(event.rank)), "' width='",
                             number(std::max(0.3, width - 0.6)), "' height='", number(kRow - 2), "'/>");
    const std::string inside = event.step.micro_batch < 0 ? "" : std::to_string(event.step.micro_batch);
    if (!inside.empty() && width > kLetterWidth * static_cast<double>(inside.size()) + 2) {
      out += text("n", x(event.begin) + width / 2, y(event.rank) + 12.5, inside);
    }
    return out + "</g>\n";
  }

  std::string message(const Event& event) const {
    const double middle = kRow / 2 - 1;
    return concat("<line class='m' x1='", number(x(event.begin)), "' y1='", number(y(event.rank) + middle), "' x2='",
                  number(x(event.end)), "' y2='", number(y(event.step.peer) + middle), "'/>\n");
  }

  const Timeline& timeline_;
  const double top_, scale_;
  double origin_;
};

std::string legend() {
  struct Key {
    const char *style, *name;
  };
  constexpr Key keys[] = {{"f", "forward"},
                          {"b", "backward"},
                          {"w", "weight gradients"},
                          {"f s1", "a second chunk"},
                          {"o", "reduce, update"}};
  std::string out;
  double x = kLeft;
  for (const auto& [style, name] : keys) {
    out += concat("<rect class='", style, "' x='", number(x), "' y='10' width='12' height='12'/>",
                  text("", x + 17, 20, name));
    x += 44 + kLetterWidth * static_cast<double>(std::string(name).size());
  }
  return out;
}

std::string summary(const Timeline& timeline) {
  const double peak =
      timeline.peak_live.empty() ? 0 : *std::max_element(timeline.peak_live.begin(), timeline.peak_live.end());
  return concat(number(timeline.makespan, "%.4g"), " in all, bubble ", number(100 * timeline.bubble(), "%.1f"), " %, ",
                number(peak, "%.4g"), " live activations, ", timeline.transfers, " messages");
}

}  // namespace

std::string draw_svg(const Titled& titled) {
  double longest = 0, height = kTop;
  for (const auto& [title, timeline] : titled) {
    longest = std::max(longest, timeline.makespan);
    height += kHead + kRow * timeline.ranks + kGap;
  }
  const double scale = longest > 0 ? (kWidth - kLeft - kRight) / longest : 0;
  std::string out = concat("<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 ", kWidth, " ", height, "' width='",
                           kWidth, "' height='", height, "'><style>", kStyle,
                           "</style><rect width='100%' height='100%' fill='#fff'/>", legend());
  double top = kTop;
  for (const auto& [title, timeline] : titled) {
    out += text("title", kLeft, top + 18, title) +
           text("", kLeft + 8 * static_cast<double>(title.size()) + 16, top + 18, summary(timeline));
    out += Picture(timeline, top + kHead, scale).draw();
    top += kHead + kRow * timeline.ranks + kGap;
  }
  return out + "</svg>\n";
}

}  // namespace colossal::schedule
