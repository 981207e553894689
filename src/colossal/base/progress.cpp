#include "colossal/base/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"

namespace colossal {
namespace {

constexpr double kTerminalInterval = 0.1;  // seconds between redrawings
constexpr double kLineInterval = 10.0;     // seconds after which the next update prints a plain line
constexpr int kBarCells = 20;

int terminal_width(std::FILE* stream) {
  winsize size{};
  return ::ioctl(::fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

ProgressStyle resolve(ProgressStyle style, std::FILE* stream) {
  if (style != ProgressStyle::kAuto) return style;
  return ::isatty(::fileno(stream)) ? ProgressStyle::kTerminal : ProgressStyle::kLines;
}

}  // namespace

Progress::Progress(std::string title, int64_t total, std::FILE* stream, ProgressStyle style,
                   std::function<double()> clock)
    : title_(std::move(title)),
      total_(total),
      stream_(stream),
      style_(resolve(style, stream)),
      clock_(clock ? std::move(clock) : std::function<double()>(steady_seconds)),
      started_(clock_()) {}

Progress::~Progress() { finish(); }

void Progress::update(int64_t done, const std::string& text) {
  if (style_ == ProgressStyle::kSilent) return;
  const double now = clock_();
  const bool first = first_done_ < 0;
  if (first) first_done_ = done;
  const bool last = total_ > 0 && done >= total_;
  const double waited = now - printed_at_;
  bool due = first || last;
  if (style_ == ProgressStyle::kTerminal) {
    due = due || waited >= kTerminalInterval;
  } else {
    due = due || waited >= kLineInterval || (total_ > 0 && (done - printed_done_) * 20 >= total_);
  }
  const std::string state = render(done, text);
  if (!due) {
    pending_ = state;
    return;
  }
  pending_.clear();
  printed_at_ = now;
  printed_done_ = done;
  if (style_ == ProgressStyle::kTerminal) {
    print_terminal(state);
  } else {
    std::fprintf(stream_, "%s\n", state.c_str());
    std::fflush(stream_);
  }
}

void Progress::line(const std::string& text) {
  if (style_ == ProgressStyle::kSilent) return;
  if (open_line_.empty()) {
    std::fprintf(stream_, "%s\n", text.c_str());
  } else {
    std::fprintf(stream_, "\r\x1b[K%s\n", text.c_str());
    print_terminal(std::exchange(open_line_, ""));
  }
  std::fflush(stream_);
}

void Progress::finish() {
  if (!pending_.empty()) {
    if (style_ == ProgressStyle::kTerminal) {
      print_terminal(pending_);
    } else {
      std::fprintf(stream_, "%s\n", pending_.c_str());
    }
    pending_.clear();
  }
  if (!open_line_.empty()) std::fputc('\n', stream_);
  open_line_.clear();
  std::fflush(stream_);
}

std::string Progress::render(int64_t done, const std::string& text) const {
  if (total_ <= 0) return concat(title_, " ", done, "  ", text);
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0);
  std::string bar;
  if (style_ == ProgressStyle::kTerminal) {
    const int cells = static_cast<int>(share * kBarCells);
    bar = "[" + std::string(cells, '=') + std::string(kBarCells - cells, ' ') + "] ";
  }
  std::string left;
  if (done > first_done_ && done < total_) {  // not for the first update, because its time may include a warm-up
    const double pace = (clock_() - started_) / static_cast<double>(done - std::max<int64_t>(first_done_ - 1, 0));
    left = "  " + readable_duration(pace * static_cast<double>(total_ - done)) + " left";
  }
  return concat(title_, " ", bar, done, "/", total_, "  ", text, left);
}

void Progress::print_terminal(const std::string& text) {
  // The text is cut at the width of the terminal, because a wrapped line could not be overwritten. The cursor returns
  // to the start of the line, so a log line overwrites it.
  open_line_ = text.substr(0, static_cast<size_t>(std::max(terminal_width(stream_) - 1, 20)));
  std::fprintf(stream_, "\r%s\x1b[K\r", open_line_.c_str());
  std::fflush(stream_);
}

std::string readable_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof(text), "%lldh %02dm", static_cast<long long>(whole / 3600),
                  static_cast<int>(whole / 60 % 60));
  } else if (whole >= 60) {
    std::snprintf(text, sizeof(text), "%dm %02ds", static_cast<int>(whole / 60), static_cast<int>(whole % 60));
  } else {
    std::snprintf(text, sizeof(text), "%ds", static_cast<int>(whole));
  }
  return text;
}

}  // namespace colossal
