//! The terminal, which is always restored to its original state.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{
    self, BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate, EnterAlternateScreen,
    LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use tokio::sync::mpsc;

/// How often the thread that reads keys checks whether to exit.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) enum Input {
    /// q, Esc or Ctrl-C.
    Quit,
    /// The window was resized, or a key without a function was pressed.
    Redraw,
    Lost(String),
}

/// The alternate screen. Dropping it restores the terminal.
#[derive(Debug)]
pub(super) struct Screen {
    colour: bool,
    input: mpsc::Receiver<Input>,
    ended: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn open(colour: bool) -> io::Result<Self> {
        // The release build aborts on a panic without running destructors, so the hook restores the terminal.
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        let (sender, input) = mpsc::channel(16);
        let ended = Arc::new(AtomicBool::new(false));
        let screen = Self { colour, input, ended: ended.clone() };
        terminal::enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        std::thread::spawn(move || read_keys(&sender, &ended));
        Ok(screen)
    }

    /// Draws the text that `page` returns for the current size.
    pub(super) fn draw(&mut self, page: impl Fn(usize, usize, bool) -> String) -> io::Result<()> {
        let (width, height) = terminal::size()?;
        let text = page(usize::from(width), usize::from(height), self.colour);
        let mut out = io::stdout().lock();
        queue!(out, BeginSynchronizedUpdate, MoveTo(0, 0))?;
        for (row, line) in (0_u16..height).zip(text.lines()) {
            queue!(out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
        }
        let rows = u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
        if rows < height {
            queue!(out, MoveTo(0, rows), Clear(ClearType::FromCursorDown))?;
        }
        queue!(out, EndSynchronizedUpdate)?;
        out.flush()
    }

    pub(super) async fn input(&mut self) -> Input {
        self.input.recv().await.unwrap_or_else(|| Input::Lost("its reader has ended".into()))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        restore();
    }
}

fn restore() {
    // If the terminal is gone, there is nothing to restore.
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    let _ = terminal::disable_raw_mode();
}

/// Reads keys. This blocks, so it runs in a thread of its own.
fn read_keys(sender: &mpsc::Sender<Input>, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        let input = match event::poll(POLL) {
            Ok(false) => continue,
            Ok(true) => match event::read() {
                Ok(event) => input_of(&event),
                Err(error) => Input::Lost(error.to_string()),
            },
            Err(error) => Input::Lost(error.to_string()),
        };
        let lost = matches!(input, Input::Lost(_));
        if sender.blocking_send(input).is_err() || lost {
            return;
        }
    }
}

fn input_of(event: &Event) -> Input {
    let Event::Key(key) = event else { return Input::Redraw };
    if key.kind == KeyEventKind::Release {
        return Input::Redraw;
    }
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Input::Quit,
        KeyCode::Char('c') if is_control => Input::Quit,
        _ => Input::Redraw,
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::KeyEvent;

    use super::*;

    #[test]
    fn three_keys_quit() {
        let quits =
            |code, modifiers| matches!(input_of(&Event::Key(KeyEvent::new(code, modifiers))), Input::Quit);
        assert!(quits(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(quits(KeyCode::Esc, KeyModifiers::NONE));
        assert!(quits(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!quits(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(matches!(input_of(&Event::Resize(80, 24)), Input::Redraw));
    }
}
