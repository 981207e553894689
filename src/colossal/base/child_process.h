// Child processes that end with this one.
//
//   ChildProcess child({"python3", "score.py"}, {.reads_input = true, .has_own_group = true});
//   std::string lines = "{}\n", answers, said;
//   while (child.write_from(lines), child.read(answers, said, 100) || !child.has_ended()) use(answers);
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "colossal/base/descriptor.h"

namespace colossal {

/// A child process and the pipes to it. It is killed when this object is destroyed, or when the thread that started it
/// ends, for whatever reason: also if this process gets SIGKILL. It inherits environment, working folder and, unless
/// the options say otherwise, the standard input. It gets no other open files, and no signal that this process ignores
/// or blocks, except that an ignored SIGHUP stays ignored.
///
/// Thread safety: none. Cost: memory of this process is not copied (vfork).
class ChildProcess {
 public:
  struct Options {
    bool reads_input = false;  ///< true = its standard input is a pipe for write_from()
    /// true = it leads a process group that has its children, too. Ctrl-C in a terminal does not reach the group. The
    /// group ends with the child: at kill(), at the destruction and if this process dies. A child that makes a session
    /// or group of its own leaves it. A second process, of /bin/sh, waits for the death of this one
    bool has_own_group = false;
    bool dies_first = false;               ///< true = the kernel kills it before others if memory runs out
    std::vector<std::string> variables{};  ///< "NAME=value", set in its environment
  };

  /// Starts `command`: a path, or a name to be found in PATH, and its arguments. No shell reads it.
  /// Errors ("process"): an empty command; a command that cannot be executed; no process or pipe can be made.
  ChildProcess(const std::vector<std::string>& command, Options options);
  explicit ChildProcess(const std::vector<std::string>& command) : ChildProcess(command, Options()) {}
  /// Kills it, and waits for its end.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t id() const { return process_; }
  /// Return the ends of its pipes for poll(); -1 = closed.
  int input() const { return input_.value(); }
  int output() const { return output_.value(); }
  int error() const { return error_.value(); }

  /// Writes as much of `text` as its standard input takes without waiting, and removes that from the text. Closes the
  /// pipe if the child does not read any more; the text then stays.
  void write_from(std::string& text);
  void close_input() { input_ = Descriptor(); }
  /// Read at most 64 KiB that have arrived and append them. They do not wait. Close the pipe at its end. Return false
  /// if nothing has arrived.
  bool read_output(std::string& to) { return read_from(output_, to); }
  bool read_error(std::string& to) { return read_from(error_, to); }
  /// Waits at most `milliseconds` for output on either pipe, and appends what has arrived. Returns false if nothing has
  /// arrived, or both are closed.
  bool read(std::string& output, std::string& error, int milliseconds);

  /// Returns true if the process has ended. Its children may still run, and its pipes may have unread output.
  bool has_ended();
  /// Waits for its end, at most `seconds`, and returns has_ended(). Does not read its output.
  bool wait(double seconds);
  /// Returns the exit status, or 128 + the signal that ended it; 127 if another part of the program has collected the
  /// status. It must have ended.
  int status() const { return status_; }
  /// Sends SIGKILL to the process, or to its group if it has its own. Does not wait.
  void kill();

 private:
  struct Ends;
  void start(const std::vector<std::string>& command, const Options& options);
  void start_guard();
  static bool read_from(Descriptor& end, std::string& to);

  pid_t process_ = 0;
  pid_t guard_ = 0;  // leads the group; 0 = none
  bool has_ended_ = false;
  int status_ = 0;
  Descriptor input_, output_, error_;
  Descriptor life_;  // its other end tells the guard that this process has died
};

}  // namespace colossal
